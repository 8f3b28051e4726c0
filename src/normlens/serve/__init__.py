"""A local page where one types a text and sees its maps: ``normlens serve``.

browser ── HTTP ──▶ server.py    the socket; slow clients, and too many, end here
                      ▼
                    app.py       foreign hosts and pages, large bodies; addresses to calls
                      ▼
                    analyses.py  the questions, the queue, and results for a while; the models
                                 named at the start, and no other, which one thread calls
"""
