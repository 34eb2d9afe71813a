"""The entry point: keeps `git bisect run` from taking a failure of our own for a verdict."""

import sys
import traceback

VERDICTS = (0, 1, 125)  # good, bad, skip: what `probe` may say below 128
OWN_FAULT = 70  # EX_SOFTWARE


def main() -> None:
    """Run bisector and exit."""
    is_probe = next((arg for arg in sys.argv[1:] if not arg.startswith("-")), "") == "probe"
    is_verdict = False
    try:
        from bisector import cli

        code, is_verdict = cli.main(sys.argv[1:])
    except Exception:  # even a broken installation must not look like a verdict
        traceback.print_exc()
        code = OWN_FAULT
    if is_probe and not (is_verdict and code in VERDICTS):
        code = code if code >= 128 else 128 + code
    sys.exit(code)


if __name__ == "__main__":
    main()
