from stallwatch import _stallwatch


def test_native_module_loads() -> None:
    """The compiled module imports by itself."""
    assert _stallwatch.__version__ == "0.1.0"
