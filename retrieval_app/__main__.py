"""`python -m retrieval_app` is the command `retrieval`."""

from retrieval_app.commands.cli import run

if __name__ == "__main__":
    run()
