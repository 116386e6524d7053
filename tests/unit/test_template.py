from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.measuring.template import ChatTemplate, TemplateFailure

MESSAGES = [{"role": "system", "content": "Be <terse>."}, {"role": "user", "content": "zwölf \n\n?"}]


def folder(path: Path, template: object, **config: object) -> Path:
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **config}))
    return path


def test_messages_are_rendered_as_they_are(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'system' %}\n"
        "[{{ m.content }}]\n    {% else %}{{ m.content | tojson }}{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<a>{% endif %}"
    )
    made = ChatTemplate(folder(tmp_path, source, bos_token={"content": "<s>"})).render(MESSAGES)
    assert made == '<s>\n[Be <terse>.]\n"zwölf \\n\\n?"<a>', "no HTML escapes, blocks take their line with them"


def test_a_separate_file_and_a_named_one_come_first(tmp_path: Path) -> None:
    folder(tmp_path, "config")
    assert ChatTemplate(tmp_path).render(MESSAGES) == "config"
    (tmp_path / "chat_template.jinja").write_text("separate")
    assert ChatTemplate(tmp_path).render(MESSAGES) == "separate"
    (tmp_path / "mine.jinja").write_text("mine")
    assert ChatTemplate(tmp_path, tmp_path / "mine.jinja").render(MESSAGES) == "mine"


def test_the_default_of_several_templates_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert ChatTemplate(folder(tmp_path, several)).render(MESSAGES) == "plain"


def test_thinking_is_handed_over_only_when_it_is_set(tmp_path: Path) -> None:
    made = ChatTemplate(folder(tmp_path, "{{ enable_thinking | default('own') }}"))
    assert [made.render(MESSAGES, value) for value in (None, True, False)] == ["own", "True", "False"]


def test_failures_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TemplateFailure, match="no chat template"):
        ChatTemplate(tmp_path)
    with pytest.raises(TemplateFailure, match="cannot be read"):
        ChatTemplate(folder(tmp_path, "{% for %}"))
    with pytest.raises(TemplateFailure, match="user first"):
        ChatTemplate(folder(tmp_path, "{{ raise_exception('user first') }}")).render(MESSAGES)


def test_a_template_cannot_reach_python(tmp_path: Path) -> None:
    with pytest.raises(TemplateFailure):
        ChatTemplate(folder(tmp_path, "{{ messages.__class__.__mro__[1].__subclasses__() }}")).render(MESSAGES)
