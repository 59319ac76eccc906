from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra `ui`")
from retrieval_app.page.document import read_document

CONFIG = '<script>window.gradio_config = {"root":"http://page.invalid"};</script>'


def test_every_script_that_stands_in_the_page_has_its_hash() -> None:
    one = '<script data-mode>\n\t"a";</script><script type="module" crossorigin src="./a.js"></script>'
    html, scripts = read_document(f"<head>{CONFIG}{one}</head>")
    assert '{"root":"./"}' in html
    assert scripts == [
        "'sha256-zIzRm+B05IUofUSXnjDA3TU/AUprqBlBmr4zUH1h5gQ='",
        "'sha256-Hpzb7bzzwtdrUc2H6DVa9gE+M1Mg4brEpgzjA+DVVVo='",
    ]


def test_a_page_that_another_gradio_writes_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Gradio"):
        read_document("<script>window.gradio_config = {};</script>")
    with pytest.raises(RuntimeError, match="Gradio"):
        read_document(f'{CONFIG}<a href="http://page.invalid/x"></a>')
