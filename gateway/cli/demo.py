"""`jobgate demo` placeholder."""


def demo() -> int:
    return 0
