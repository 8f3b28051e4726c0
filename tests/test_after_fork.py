"""A process that is forked while another thread analyses can analyse itself."""

from __future__ import annotations

import textwrap

from forking import run_python

PATIENCE = 60  # seconds after which a process counts as stuck

#: A model in training mode, and `forked(work)`: whether the work succeeds in a child process.
SETTING = f"""
    import os, signal, sys, threading, time, traceback
    import torch
    import normlens
    from normlens.models.tiny import tiny_model

    def outcome(child):
        for _ in range({PATIENCE} * 100):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "stuck"

    def forked(work):
        child = os.fork()
        if child:
            return outcome(child)
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    def analysed(lens):
        found = lens.maps(input_ids=[5, 6, 7])
        assert found == expected
        hooks = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
        assert not hooks
        assert all(module.training for module in model.modules())
        assert type(model.config) is kind
        assert model.config._attn_implementation == "sdpa"

    model = tiny_model("gpt2").train()
    model.set_attn_implementation("sdpa")
    kind = type(model.config)
    lens = normlens.load(model)
    expected = lens.maps(input_ids=[5, 6, 7])
    entered, leave = threading.Event(), threading.Event()

    def wait(*_):
        entered.set()
        assert leave.wait({PATIENCE})
"""


def run(source: str) -> None:
    done = run_python(textwrap.dedent(SETTING) + textwrap.dedent(source), patience=3 * PATIENCE)
    assert done.returncode == 0, done.stderr


def test_while_another_thread_analyses_the_same_model():
    """Its turn with the model, its hooks and its settings do not go on in the child."""
    run("""
    other = threading.Thread(target=lambda: lens.maps(input_ids=[3, 4], progress=wait))
    other.start()
    assert entered.wait(60)
    assert forked(lambda: analysed(lens)) == 0
    leave.set()
    other.join()
    analysed(lens)  # in the parent as well
    """)
