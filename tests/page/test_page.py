"""The page in a browser, against a scripted server."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fake_server import TIMINGS, Answer, FakeServer, stats_at
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.page
Opener = Callable[..., Page]

DAYS = Answer([[("The days are Mon", False), ("day, Tues", True)], [("day,", True), (" Wednesday", False)]])
TEXT = "The days are Monday, Tuesday, Wednesday"
ATTACK = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def ask(page: Page, question: str = "Name the days.") -> None:
    """Send a question with the keyboard."""
    page.fill("#message", question)
    page.keyboard.press("Enter")


def answered(page: Page, number: int = 0) -> None:
    """Wait until an answer is complete."""
    expect(page.locator(".answer .foot").nth(number)).to_be_visible()


def status(*lines: str) -> Answer:
    """An answer with an error status: ``429``, then a message."""
    return Answer(status=int(lines[0]), error={"message": lines[1], "type": "some_error", "param": None, "code": None})


def test_it_opens_without_a_complaint(page: Page, fake: FakeServer) -> None:
    expect(page.locator("#served")).to_have_text("SmolLM2-135M · suffix · native")
    expect(page.locator("#state")).to_have_text("idle")
    expect(page).to_have_title("SmolLM2-135M · Outrider")
    expect(page.locator("#message")).to_be_focused()
    assert fake.unknown == []


def test_an_answer_streams_and_shades_accepted_drafts(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(DAYS.chunks, wait_before=1))
    ask(page)
    text = page.locator(".answer .text")
    expect(text).to_have_text("The days are Monday, Tues")
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    fake.go_on.set()
    answered(page)
    expect(text).to_have_text(TEXT)
    assert text.locator(".accepted").all_text_contents() == ["day, Tuesday,"]
    shaded = text.locator(".accepted").evaluate("span => getComputedStyle(span).backgroundColor")
    assert shaded != "rgba(0, 0, 0, 0)"
    page.uncheck("#shade")
    assert text.locator(".accepted").evaluate("span => getComputedStyle(span).backgroundColor") == "rgba(0, 0, 0, 0)"


def test_the_request_asks_for_pieces_timings_and_usage(page: Page, fake: FakeServer) -> None:
    page.locator("#system summary").click()
    page.fill("#system-prompt", "Be brief.")
    fake.answers.append(DAYS)
    ask(page)
    answered(page)
    ask(page, "Again.")
    answered(page, 1)
    asked = {"stream": True, "stream_options": {"include_usage": True}, "return_pieces": True, "timings": True}
    system, first = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name the days."}
    assert fake.bodies[0] == {"messages": [system, first], **asked}
    assert fake.bodies[1]["messages"] == [
        system,
        first,
        {"role": "assistant", "content": TEXT},
        {"role": "user", "content": "Again."},
    ]


def test_the_figures_of_an_answer(page: Page) -> None:
    ask(page)
    answered(page)
    assert page.locator(".figures li").all_text_contents() == [
        "212 tokens/s",
        "plain about 96",
        "2.2×",
        "α 0.84",
        "τ 3.8",
        "15 rounds",
        "first token 0.12 s",
        "57 tokens",
        "96 of 128 prompt tokens cached",
    ]


@pytest.mark.parametrize(
    ("plain", "told", "gains"),
    [(50.0, ["plain about 50", "2.0×"], 1), (125.0, ["plain about 130", "0.8×"], 0), (None, [], 0)],
)
def test_a_speedup_is_praised_only_if_it_is_one(
    page: Page, fake: FakeServer, plain: float | None, told: list[str], gains: int
) -> None:
    fake.answers.append(Answer(timings={**TIMINGS, "tokens_per_second": 100.0, "plain_tokens_per_second": plain}))
    ask(page)
    answered(page)
    figures = page.locator(".figures li").all_text_contents()
    assert figures[: len(told) + 1] == ["100 tokens/s", *told]
    assert figures[len(told) + 1] == "α 0.84"
    expect(page.locator(".figures .gain")).to_have_count(gains)


def test_an_answer_cut_at_its_length_says_so(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(finish="length"))
    ask(page)
    expect(page.locator(".figures .end")).to_have_text("cut at max tokens")


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop_ends_the_request_and_keeps_the_text(page: Page, fake: FakeServer, how: str) -> None:
    fake.answers.append(Answer(DAYS.chunks, wait_before=1))
    ask(page)
    expect(page.locator(".answer .text")).to_contain_text("Tues")
    if how == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    answered(page)
    assert fake.broken.wait(20), "the request went on"
    expect(page.locator(".figures .end")).to_have_text("stopped")
    expect(page.locator(".answer .text")).to_have_text("The days are Monday, Tues")
    expect(page.locator("#message")).to_be_focused()
    ask(page, "And then?")
    answered(page, 1)
    assert fake.bodies[1]["messages"][1] == {"role": "assistant", "content": "The days are Monday, Tues"}


def test_a_new_chat_ends_the_answer_and_forgets(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(DAYS.chunks, wait_before=1))
    ask(page)
    expect(page.locator(".answer .text")).to_contain_text("Tues")
    page.click("#new-chat")
    expect(page.locator(".message")).to_have_count(0)
    assert fake.broken.wait(20), "the request went on"
    ask(page, "Anew.")
    answered(page)
    assert fake.bodies[1]["messages"] == [{"role": "user", "content": "Anew."}]


def test_retry_replaces_the_last_answer(page: Page, fake: FakeServer) -> None:
    ask(page, "One.")
    answered(page)
    fake.answers += [Answer([[("bad", False)]]), Answer([[("good", False)]])]
    ask(page, "Two.")
    answered(page, 1)
    expect(page.locator(".retry:visible")).to_have_count(1)
    page.click(".retry:visible")
    expect(page.locator(".answer .text").nth(1)).to_have_text("good")
    expect(page.locator(".message")).to_have_count(4)
    assert fake.bodies[1]["messages"] == fake.bodies[2]["messages"]


def test_copy_takes_the_text_as_the_model_wrote_it(open_page: Opener, fake: FakeServer) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    written = "Look:\n\n```python\nx = 1\n```\n\nDone."
    fake.answers.append(Answer([[(written[:9], True), (written[9:], False)]]))
    ask(page)
    answered(page)
    page.click(".copy")
    expect(page.locator(".copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == written


def test_copy_works_without_a_clipboard(page: Page) -> None:
    ask(page)
    answered(page)
    page.evaluate("""() => {
        Object.defineProperty(navigator, 'clipboard', { value: undefined });
        document.addEventListener('copy', () => { document.body.dataset.copied = getSelection().toString(); });
    }""")
    page.click(".copy")
    expect(page.locator("body")).to_have_attribute("data-copied", "Good day.")


def test_reasoning_is_shown_apart_and_folds_away(page: Page, fake: FakeServer) -> None:
    thought = [[("They want ", False), ("days.", True)], [(" Easy.", False)]]
    fake.answers.append(Answer(DAYS.chunks, reasoning=thought, wait_before=2))
    ask(page)
    reasoning = page.locator(".reasoning")
    expect(reasoning.locator(".thought")).to_have_text("They want days. Easy.")
    expect(reasoning).to_have_attribute("open", "")
    assert reasoning.locator(".accepted").all_text_contents() == ["days."]
    fake.go_on.set()
    answered(page)
    expect(reasoning).not_to_have_attribute("open", "")
    expect(page.locator(".answer .text")).to_have_text(TEXT)
    page.click(".reasoning summary")
    expect(reasoning.locator(".thought")).to_be_visible()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_fenced_code_is_set_apart_and_no_character_is_lost(page: Page, fake: FakeServer, size: int) -> None:
    written = "Look at `x`:\n```python\nx = '``'\n ``y\n```\nand\n\n  ````\n```\n````\n`` no\n``"
    cut = [(written[at : at + size], at % 2 == 0) for at in range(0, len(written), size)]
    fake.answers.append(Answer([[piece] for piece in cut]))
    ask(page)
    answered(page)
    assert page.locator(".answer .text").evaluate("text => text.textContent") == written
    assert page.locator(".code").all_text_contents() == ["```python\nx = '``'\n ``y\n```\n", "  ````\n```\n````\n"]
    assert page.locator(".prose").all_text_contents() == ["Look at `x`:\n", "and\n\n", "`` no\n``"]


def test_output_and_input_stay_text(page: Page, fake: FakeServer, complaints: list[str]) -> None:
    fake.answers.append(
        Answer([[(ATTACK, True)], [("\n```html\n" + ATTACK, False)]], reasoning=[[(ATTACK, False)]], finish=ATTACK)
    )
    fake.answers.append(status("400", ATTACK))
    fake.stats.append({**stats_at(1), "model": ATTACK, "algorithm": ATTACK})
    ask(page, ATTACK)
    answered(page)
    ask(page, ATTACK)
    answered(page, 1)
    expect(page.locator("#served")).to_contain_text(ATTACK)
    assert page.locator(".question .text").first.text_content() == ATTACK
    assert page.locator(".answer .text").first.text_content() == f"{ATTACK}\n```html\n{ATTACK}"
    assert page.locator(".failure").nth(1).text_content() == ATTACK
    assert page.locator("main img, main script, aside img, header img").count() == 0
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert "owned" not in page.title().replace(ATTACK, "")
    complaints.clear()  # the error status


def test_everything_can_be_done_with_the_keyboard(page: Page, fake: FakeServer) -> None:
    page.evaluate(
        "() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); }"
    )
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    order = []
    for _ in range(12):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate("document.activeElement.id || document.activeElement.textContent.trim().slice(0, 12)")
        )
    assert order[:6] == ["show-live", "show-request", "shade", "new-chat", "transcript", "System promp"]
    assert order[9:] == ["message", "send", "What the fig"]
    page.focus("#message")
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    answered(page)
    assert fake.bodies[0]["messages"] == [{"role": "user", "content": "One\ntwo"}]
    expect(page.locator("#message")).to_have_value("")
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_have_count(2)


def test_focus_can_be_seen(page: Page) -> None:
    for selector in ("#show-live", "#new-chat", "#transcript", ".examples button", "summary"):
        page.locator(selector).first.focus()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", selector


def test_the_answer_is_announced_once(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(DAYS.chunks, wait_before=1))
    ask(page)
    announcer = page.locator("#announcer")
    expect(page.locator(".answer .text")).to_contain_text("Tues")
    expect(announcer).to_have_text("Writing the answer")
    fake.go_on.set()
    expect(announcer).to_have_text(f"Answer: {TEXT}")
    assert page.locator("[aria-live]").count() == 1


AWAY = """() => {
    const view = document.getElementById('transcript');
    return view.scrollHeight - view.scrollTop - view.clientHeight;
}"""


def test_the_end_stays_in_view_until_the_reader_scrolls_up(page: Page, fake: FakeServer) -> None:
    lines = [[(f"line {number}\n", number % 2 == 0)] for number in range(80)]
    fake.answers.append(Answer(lines, wait_before=60))
    ask(page)
    expect(page.locator(".answer .text")).to_contain_text("line 59")
    expect(page.locator("#latest")).to_be_hidden()
    page.locator("#transcript").hover()
    page.mouse.wheel(0, -600)
    expect(page.locator("#latest")).to_be_visible()
    fake.go_on.set()
    answered(page)
    assert page.evaluate(AWAY) > 500
    page.click("#latest")
    expect(page.locator("#latest")).to_be_hidden()
    assert page.evaluate(AWAY) < 2


# Errors


def test_a_busy_server_says_when_to_try_again(page: Page, fake: FakeServer, complaints: list[str]) -> None:
    busy = status("429", "64 requests wait already.")
    fake.answers += [Answer(status=429, error=busy.error, headers={"Retry-After": "7"}), DAYS]
    ask(page)
    expect(page.locator(".failure")).to_have_text("The server is busy. 64 requests wait already. Try again in 7 s.")
    page.click(".retry:visible")
    expect(page.locator(".answer .text")).to_have_text(TEXT)
    expect(page.locator(".failure")).to_be_hidden()
    complaints.clear()  # the browser reports every error status


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        (
            "503",
            "Shutting down.",
            "The server takes no new requests: it is shutting down or not ready yet. Shutting down.",
        ),
        ("400", "top_p must be at most 1, not 2.", "top_p must be at most 1, not 2."),
        ("500", "The engine failed.", "The engine failed."),
    ],
)
def test_the_servers_sentence_is_told(
    page: Page, fake: FakeServer, complaints: list[str], code: str, message: str, told: str
) -> None:
    fake.answers.append(status(code, message))
    ask(page)
    expect(page.locator(".failure")).to_have_text(told)
    complaints.clear()


def test_an_error_body_of_another_kind_is_told_by_its_status(
    page: Page, fake: FakeServer, complaints: list[str]
) -> None:
    fake.answers.append(Answer(status=502, error=None))
    ask(page)
    expect(page.locator(".failure")).to_have_text("The server answered 502.")
    complaints.clear()


def test_an_error_inside_the_stream_keeps_the_text(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(DAYS.chunks, error={"message": "The round failed.", "type": "server_error"}))
    ask(page)
    expect(page.locator(".failure")).to_have_text("The round failed.")
    expect(page.locator(".answer .text")).to_have_text(TEXT)


def test_a_stream_that_is_cut_off_is_not_a_whole_answer(page: Page, fake: FakeServer) -> None:
    fake.answers.append(Answer(DAYS.chunks, cut=True))
    ask(page)
    expect(page.locator(".failure")).to_have_text("The connection ended before the answer did.")


def test_a_question_without_an_answer_is_left_out_later(page: Page, fake: FakeServer, complaints: list[str]) -> None:
    fake.answers.append(status("500", "The engine failed."))
    ask(page, "Lost.")
    answered(page)
    ask(page, "Next.")
    answered(page, 1)
    assert fake.bodies[1]["messages"] == [{"role": "user", "content": "Next."}]
    complaints.clear()


def test_offline_is_told_and_passes(page: Page, complaints: list[str]) -> None:
    expect(page.locator("#state")).to_have_text("idle")
    page.context.set_offline(True)
    ask(page)
    expect(page.locator(".failure")).to_contain_text("The server does not answer.")
    expect(page.locator("#state")).to_have_text("no answer")
    expect(page.locator("#live-notice")).to_contain_text("The server does not answer.")
    page.context.set_offline(False)
    expect(page.locator("#state")).to_have_text("idle")
    page.click(".retry:visible")
    expect(page.locator(".answer .text")).to_have_text("Good day.")
    complaints.clear()


def test_a_server_with_a_key_asks_for_it_once(open_page: Opener, fake: FakeServer, complaints: list[str]) -> None:
    fake.key = "secret"
    page = open_page()
    expect(page.locator("#key")).to_be_visible()
    expect(page.locator("#key-reason")).to_have_text("The server asks for an API key.")
    page.fill("#key-input", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#key-reason")).to_have_text("The server refused the key.")
    page.fill("#key-input", "secret")
    page.keyboard.press("Enter")
    expect(page.locator("#key")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("idle")
    ask(page)
    answered(page)
    expect(page.locator(".answer .text")).to_have_text("Good day.")
    assert page.evaluate("Object.values(sessionStorage)") == ["secret"]
    assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
    complaints.clear()


def test_the_chat_asks_for_the_key_and_goes_on(open_page: Opener, fake: FakeServer, complaints: list[str]) -> None:
    fake.key = "secret"
    page = open_page()
    expect(page.locator("#key")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#key")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("needs a key")
    ask(page)
    expect(page.locator("#key")).to_be_visible()
    page.fill("#key-input", "secret")
    page.click("#key button[type=submit]")
    expect(page.locator(".answer .text")).to_have_text("Good day.")
    expect(page.locator("#state")).to_have_text("idle")
    complaints.clear()


# The request's switches


def test_settings_are_sent_and_remembered(page: Page, fake: FakeServer) -> None:
    expect(page.locator("#served")).to_contain_text("suffix")
    page.click("#show-request")
    page.locator("input[name=enabled][value=on]").check()
    page.select_option("select[name=algorithm]", "ngram")
    numbers = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 0, "max_tokens": 64}
    for name, value in {**numbers, "max_draft_tokens": 4}.items():
        page.fill(f"input[name={name}]", str(value))
    page.fill("textarea[name=stop]", "END\n\nuser:")
    wanted = {
        **numbers,
        "stop": ["END", "user:"],
        "speculation": {"enabled": True, "algorithm": "ngram", "max_draft_tokens": 4},
    }
    page.reload()
    page.click("#show-request")
    expect(page.locator("select[name=algorithm]")).to_have_value("ngram")
    ask(page)
    answered(page)
    assert {name: value for name, value in fake.bodies[0].items() if name in wanted} == wanted
    page.click("#reset-settings")
    page.click(".retry:visible")
    expect(page.locator(".foot:visible")).to_be_visible()
    assert wanted.keys() & fake.bodies[1].keys() == set()


def test_speculation_off_sends_nothing_else_of_it(page: Page, fake: FakeServer) -> None:
    page.click("#show-request")
    page.fill("input[name=max_draft_tokens]", "4")
    page.locator("input[name=enabled][value=off]").check()
    ask(page)
    answered(page)
    assert fake.bodies[0]["speculation"] == {"enabled": False}


def test_one_algorithm_is_no_choice(open_page: Opener, fake: FakeServer) -> None:
    fake.algorithms = ["suffix"]
    page = open_page()
    page.click("#show-request")
    expect(page.locator("#served")).to_contain_text("suffix")
    expect(page.locator("#algorithm-field")).to_be_hidden()


@pytest.mark.parametrize(("name", "value"), [("top_p", "2"), ("top_k", "1.5"), ("max_tokens", "0")])
def test_a_value_that_cannot_be_is_told_before_it_is_sent(page: Page, fake: FakeServer, name: str, value: str) -> None:
    page.click("#show-request")
    page.fill(f"input[name={name}]", value)
    page.click("#show-live")
    ask(page)
    expect(page.locator("#notice")).to_be_visible()
    expect(page.locator(f"input[name={name}]")).to_be_focused()
    expect(page.locator("#message")).to_have_value("Name the days.")
    page.fill(f"input[name={name}]", "1")
    page.click("#send")
    answered(page)
    expect(page.locator("#notice")).to_be_hidden()
    assert [body[name] for body in fake.bodies] == [1]


def test_the_page_works_without_storage(browser: object, open_page: Opener, fake: FakeServer) -> None:
    page = open_page()
    page.context.add_init_script("""
        for (const name of ['localStorage', 'sessionStorage'])
            Object.defineProperty(window, name, { get() { throw new DOMException('no', 'SecurityError'); } });
    """)
    page.reload()
    ask(page)
    answered(page)
    page.click("#show-request")
    page.fill("input[name=seed]", "3")
    page.click(".retry:visible")
    expect(page.locator(".foot:visible")).to_be_visible()
    assert fake.bodies[1]["seed"] == 3


# The charts


def test_empty_charts_say_what_will_appear(page: Page) -> None:
    expect(page.locator(".chart.throughput .empty")).to_be_visible()
    expect(page.locator(".chart .empty")).to_have_count(6)


def test_charts_draw_the_differences(page: Page, fake: FakeServer) -> None:
    fake.stats += [stats_at(0, running=1, done=5), stats_at(2, running=2, waiting=3, done=7)]
    fake.stats.append({**stats_at(3, running=2, waiting=3, done=7)})
    expect(page.locator("#state")).to_have_text("2 running, 3 waiting")
    expect(page.locator(".chart.acceptance .value")).to_have_text("α 0.75")
    assert page.locator(".chart.acceptance .mark").all_text_contents() == ["0.87", "0.80", "0.68", "0.59", "0.44"]
    assert page.locator(".chart.budget .mark").all_text_contents() == ["7.4", "5.1", "2.6", "0.9"]
    expect(page.locator(".chart.budget .value")).to_have_text("5.1 now")
    expect(page.locator(".chart.cache .value")).to_have_text("60 % hits")
    expect(page.locator(".chart.queue .value")).to_have_text("KV cache 34 %")
    assert page.locator(".chart.seconds .key li").all_text_contents() == [
        "verify 69 %",
        "draft 6 %",
        "mixed 11 %",
        "prefill 9 %",
        "other 5 %",
    ]
    for name in ("throughput", "queue"):
        assert page.locator(f".chart.{name} path.line").count() >= 1
    positions = page.locator(".chart.acceptance svg").get_attribute("aria-label") or ""
    assert positions.startswith("Acceptance α: α 0.75. Position 1: 104 of 120 accepted. ")
    label = page.locator(".chart.throughput svg").get_attribute("aria-label")
    assert re.fullmatch(r"Throughput: \d+ tokens/s", label or "")


HISTORY = """async (samples) => {
    const { History, BUCKET } = await import('/page/history.js');
    const history = new History();
    for (const [time, tokens] of samples) history.add({ time, tokens, rounds: tokens });
    const tokens = (stats) => stats.tokens;
    return {
        kept: history.samples.length,
        growth: history.growth(tokens),
        rates: history.rates(tokens).map(({ value }) => value),
        now: history.rateNow(tokens),
        span: history.span,
        buckets: history.buckets([tokens]).map(({ values }) => values[0]),
    };
}"""


def test_rates_are_differences_over_the_servers_time(page: Page) -> None:
    told = page.evaluate(HISTORY, [[100, 50], [101, 60], [103, 100], [110, 100], [111, 107]])
    assert told == {"kept": 5, "growth": 57, "rates": [10, 20, None, 7], "now": 7, "span": 30, "buckets": [50, 7]}


def test_a_server_that_started_again_begins_a_new_history(page: Page) -> None:
    assert page.evaluate(HISTORY, [[100, 50], [101, 60], [102, 0], [103, 5]])["rates"] == [5, 5][:1]


def test_history_keeps_two_minutes(page: Page) -> None:
    told = page.evaluate(HISTORY, [[second, 10 * second] for second in range(1000)])
    assert (told["kept"], told["span"]) == (122, 120)
    assert len(told["buckets"]) <= 26


SSE = """async (parts) => {
    const { events } = await import('/page/sse.js');
    const bytes = parts.map((part) => Uint8Array.from(part));
    const stream = new ReadableStream({ start(out) { bytes.forEach((each) => out.enqueue(each)); out.close(); } });
    const found = [];
    for await (const data of events(stream)) found.push(data);
    return found;
}"""


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_events_are_read_wherever_the_bytes_are_cut(page: Page, ending: str, size: int) -> None:
    lines = [": hello", "data: one é 漢", "", "event: x", "data:two", "data: three", "id: 4", "", "", "data: cut off"]
    raw = ending.join(lines).encode()
    parts = [list(raw[at : at + size]) for at in range(0, len(raw), size)]
    assert page.evaluate(SSE, parts) == ["one é 漢", "two\nthree"]


# How it looks

SIZES = [(360, 640), (768, 1024), (1280, 800), (1920, 1080)]


@pytest.mark.parametrize("width", [width for width, _ in SIZES])
def test_nothing_is_wider_than_the_screen(open_page: Opener, fake: FakeServer, width: int) -> None:
    long = "word" * 120
    fake.answers.append(Answer([[(f"{long}\n```\n{long}\n```\n", True)]]))
    fake.stats += [stats_at(0, running=1), stats_at(2, running=2, waiting=3, done=2)]
    page = open_page(viewport={"width": width, "height": 700})
    ask(page, long)
    answered(page)
    views = ("chat", "live", "request") if width < 960 else ("live", "request")
    for view in views:
        page.click(f"#show-{view}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        wide = page.evaluate(
            """(width) => [...document.querySelectorAll('.panel, .transcript, .composer, .bar, .tools')]
            .filter((each) => each.offsetParent && each.scrollWidth > each.clientWidth + 1)
            .map((each) => each.className)""",
            width,
        )
        assert wide == [], view


CONTRAST = """() => {
    const parse = (color) => {
        const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
        return { rgb: [r, g, b], a };
    };
    const over = (top, below) => top.rgb.map((each, index) => each * top.a + below[index] * (1 - top.a));
    const backdrop = (element) => {
        if (!element) return [255, 255, 255];
        const own = parse(getComputedStyle(element).backgroundColor);
        return own.a === 1 ? own.rgb : over(own, backdrop(element.parentElement));
    };
    const light = (rgb) => {
        const [r, g, b] = rgb.map((each) => {
            const share = each / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const poor = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let seen = 0;
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
        if (element.closest('template, script, style, .unseen, .skip, :disabled')) continue;
        seen += 1;
        const style = getComputedStyle(element);
        const behind = backdrop(element);
        const front = over(parse(element instanceof SVGElement ? style.fill : style.color), behind);
        const [high, low] = [light(front), light(behind)].sort((one, other) => other - one);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) poor.push(`${walker.currentNode.data.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return { poor, seen };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(open_page: Opener, fake: FakeServer, complaints: list[str], scheme: str) -> None:
    fake.stats += [stats_at(0, running=1), stats_at(2, running=2, waiting=3, done=2)]
    fake.answers += [
        Answer([[("Good ", False), ("day\n```py\nx\n```\n", True)]], reasoning=[[("So ", True), ("so", False)]]),
        status("500", "The engine failed."),
    ]
    page = open_page(color_scheme=scheme)
    ask(page)
    answered(page)
    page.click(".reasoning summary")
    ask(page)
    answered(page, 1)
    for view in ("live", "request"):
        page.click(f"#show-{view}")
        told = page.evaluate(CONTRAST)
        assert told["poor"] == []
        assert told["seen"] > 30
    page.click("#change-key")
    assert page.evaluate(CONTRAST)["poor"] == []
    complaints.clear()


def test_dark_is_dark(open_page: Opener) -> None:
    paper = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
    assert max(open_page(color_scheme="dark").evaluate(paper)) < 60
    assert min(open_page(color_scheme="light").evaluate(paper)) > 200


def test_nothing_moves_for_those_who_ask(open_page: Opener, fake: FakeServer) -> None:
    page = open_page(reduced_motion="reduce")
    fake.answers.append(Answer(wait_before=0))
    ask(page)
    waiting = page.locator(".waiting")
    expect(waiting).to_be_visible()
    assert waiting.evaluate("each => getComputedStyle(each).animationName") == "none"


def test_a_phone_shows_one_part_at_a_time(open_page: Opener) -> None:
    page = open_page(viewport={"width": 360, "height": 640})
    expect(page.locator("#chat")).to_be_visible()
    expect(page.locator("#live")).to_be_hidden()
    page.click("#show-live")
    expect(page.locator("#live")).to_be_visible()
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.locator("#show-live")).to_have_attribute("aria-pressed", "true")
    page.click("#show-chat")
    expect(page.locator("#message")).to_be_visible()


def test_every_control_has_a_name(page: Page, fake: FakeServer) -> None:
    fake.stats += [stats_at(0, running=1), stats_at(2, running=2, waiting=3, done=2)]
    expect(page.locator(".chart.throughput svg")).to_be_visible()
    page.click("#show-request")
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea, [role=img]')]
        .filter((each) => each.checkVisibility() && !each.labels?.length && !each.ariaLabel && !each.textContent.trim())
        .map((each) => each.outerHTML.slice(0, 60))""")
    assert nameless == []
