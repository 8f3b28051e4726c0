"""A local page where one types a text and sees its maps: ``normlens serve``.

browser ── HTTP ──▶ security.py            foreign hosts, foreign pages and large bodies end here
                      ▼
                    app.py                 addresses to calls; the answers' shapes are in schemas.py
                      ▼
                    jobs.py                the queue, and results for a while
                      ▼
                    analysis_thread.py     the only thread that calls torch
                      ▼
                    models.py              the models named at the start, and no other
"""
