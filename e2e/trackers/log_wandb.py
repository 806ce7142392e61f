"""Logs a run with wandb's own SDK, and continues it in a second one: the server must tell the SDK where it was.

WANDB_BASE_URL and WANDB_API_KEY name the server.
"""

import wandb

ROWS = 3


def main() -> None:
    for first, resume in ((0, None), (ROWS, "must")):
        run = wandb.init(project="sdk", id="online", resume=resume, settings=wandb.Settings(console="off"))
        for step in range(first, first + ROWS):
            run.log({"loss": 1 / (step + 1)}, step=step)
        run.finish()


if __name__ == "__main__":
    main()
