"""`python -m pipeline` is `facepipe`."""

from pipeline.cli import main

if __name__ == "__main__":
    main(prog_name="facepipe")
