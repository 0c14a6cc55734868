//! The screen, line by line, and the keys.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::draw::draw;
use super::sample::Sample;
use super::state::{Next, Top};
use crate::status::Found;

const PING: u64 = 0x111;
const PONG: u64 = 0x222;
const UD: u64 = 0x333;

fn qp(qpn: u64, peer: u64, tx: u64, retries: u64) -> Value {
    json!({
        "qpn": qpn, "type": "RC", "state": "RTS", "peer": {"address": "10.0.0.2", "qpn": peer, "way": "udp"},
        "sq_psn": 1000 + tx, "rq_psn": 7, "window": 64,
        "counters": {"tx_bytes": tx * 1000, "tx_packets": tx, "rx_bytes": tx * 500, "rx_packets": tx,
                     "completer_retry_err": retries, "ack_timeout": 0},
    })
}

fn device(pid: u64, program: &str, qps: &Value, tx: u64) -> Value {
    json!({
        "pid": pid, "program": program, "device": "urxe0", "netdev": "eth0", "addresses": ["10.0.0.1", "fe80::1"],
        "mrs": {"count": 3, "bytes": 1 << 20}, "qps": qps,
        "counters": {"tx_bytes": tx * 1000, "tx_packets": tx, "rx_bytes": tx * 500, "rx_packets": tx, "icrc_err": 0},
    })
}

/// Two processes: a busy queue pair whose packets are sent again, one that does nothing, one in an error state.
fn found(tx: u64, retries: u64) -> Found {
    let dead = json!({"qpn": UD, "type": "UD", "state": "ERR", "peer": null, "window": 0, "counters": {}});
    let devices = vec![
        device(41, "ib_write\u{1b}[2J", &json!([qp(PING, PONG, tx, retries)]), tx),
        device(7, "server", &json!([qp(PONG, PING, 5, 0), dead]), 5),
    ];
    Found { devices, silent: 0 }
}

/// Two samples, two seconds apart.
fn top() -> Top {
    let mut top = Top::new(String::new());
    let start = Instant::now();
    top.take(Sample::new(start, &found(1_000, 3)));
    top.take(Sample::new(start + Duration::from_secs(2), &found(5_000, 4)));
    top
}

/// Lines of the screen, without spaces at their ends.
fn lines(top: &Top, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, top)).unwrap();
    let cells: Vec<&str> = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
    let rows = cells.chunks(usize::from(width).max(1)).map(|row| row.concat().trim_end().to_owned());
    rows.take(usize::from(height)).collect()
}

fn press(top: &mut Top, keys: &str) {
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            letter => KeyCode::Char(letter),
        };
        assert_eq!(top.press(KeyEvent::new(code, KeyModifiers::NONE)), Next::Go, "{letter:?}");
    }
}

/// Queue pairs shown, from top to bottom.
fn shown(top: &Top) -> Vec<u64> {
    top.qps().iter().filter_map(|qp| qp.key.qpn).collect()
}

#[test]
fn a_wide_screen() {
    assert_eq!(
        lines(&top(), 160, 15),
        [
            "urxe top  2 devices  3 queue pairs",
            "PID  PROGRAM       DEVICE  NETDEV  QPS  MRS  MR BYTES  TX B/sv  RX B/s  TX pkt/s  RX pkt/s  RETRIES  DROPS",
            "41   ib_write?[2J  urxe0   eth0      1    3     1.05M    2.00M   1.00M      2000      2000        0      0",
            "7    server        urxe0   eth0      2    3     1.05M        0       0         0         0        0      0",
            "",
            "PID  PROGRAM       DEVICE  QP        TYPE  STATE  PEER               TX B/sv  RX B/s  TX pkt/s  RX pkt/s  WINDOW  RETRIES  TIMEOUTS  RNR  NAKS  DROPS",
            "41   ib_write?[2J  urxe0   0x000111  RC    RTS    10.0.0.2 0x000222    2.00M   1.00M      2000      2000      64        4         0    0     0      0",
            "7    server        urxe0   0x000222  RC    RTS    10.0.0.2 0x000111        0       0         0         0      64        0         0    0     0      0",
            "7    server        urxe0   0x000333  UD    ERR                             0       0         0         0       0        0         0    0     0      0",
            "",
            "",
            "",
            "",
            "",
            "q quit  ? help  Enter details  / filter  s sort  space pause  Tab devices  r reverse  Up Down choose",
        ]
    );
}

#[test]
fn an_empty_screen() {
    let mut top = Top::new(String::new());
    assert_eq!(lines(&top, 40, 4), ["urxe top", "asking the devices", "", "q quit  ? help  Enter details  / filter"]);
    top.take(Sample::new(Instant::now(), &Found { devices: Vec::new(), silent: 1 }));
    let lines = lines(&top, 90, 3);
    assert_eq!(lines[0], "urxe top  0 devices  0 queue pairs  1 more: of other users, or busy (root sees all)");
    assert_eq!(lines[1], "no process of this network uses urxe");
}

#[test]
fn narrow_screens_keep_what_matters() {
    let top = top();
    for width in 0..170 {
        for height in [0, 1, 2, 3, 5, 12, 13, 24] {
            let lines = lines(&top, width, height);
            // Columns are whole or not there.
            if width >= 40 && height >= 5 {
                let head = lines.iter().find(|line| line.contains("QP  ") && line.contains("TX B/sv"));
                let head = head.unwrap_or_else(|| panic!("{width}x{height}:\n{}", lines.join("\n")));
                assert!(head.contains("STATE") && head.contains("RX B/s"), "{width}: {head}");
            }
        }
    }
    assert!(lines(&top, 60, 24).iter().any(|line| line.contains("RETRIES")), "{:?}", lines(&top, 60, 24));
}

#[test]
fn rows_are_sorted_and_stay_chosen() {
    let mut top = top();
    assert_eq!(shown(&top), [PING, PONG, UD], "the busiest first");
    press(&mut top, "r");
    assert_eq!(shown(&top), [PONG, UD, PING]);
    assert!(top.sort_by("qp") && !top.sort_by("nonsense"));
    assert_eq!(shown(&top), [PING, PONG, UD], "by name, from the smallest");
    press(&mut top, "jj");
    let chosen = |top: &Top| top.qps()[top.chosen(super::state::Focus::QueuePairs, &top.qps()).unwrap()].key.qpn;
    assert_eq!(chosen(&top), Some(UD));
    press(&mut top, "r");
    assert_eq!((shown(&top)[0], chosen(&top)), (UD, Some(UD)), "the choice goes with its row");
    press(&mut top, "S");
    assert_eq!(top.sort(top.focus).column, 2);
    for _ in 0..3 {
        press(&mut top, "S");
    }
    assert_eq!(top.sort(top.focus).column, super::columns::QPS.len() - 1, "round and round");
    press(&mut top, "s");
    assert_eq!(top.sort(top.focus).column, 0);
}

#[test]
fn a_filter_finds_devices_and_queue_pairs() {
    let mut top = top();
    press(&mut top, "/server rc");
    assert_eq!(shown(&top), [PONG]);
    assert!(lines(&top, 100, 20)[0].contains("filter: server rc_"));
    press(&mut top, "\u{8}\u{8}\n");
    assert_eq!(shown(&top), [PONG, UD]);
    assert_eq!(top.devices().len(), 1);
    press(&mut top, "\u{1b}");
    assert_eq!(shown(&top).len(), 3, "Esc shows all");
    for (filter, found) in [("0x333", UD), ("819", UD), ("err", UD), ("41", PING), ("10.0.0.2 0x000222", PING)] {
        press(&mut top, &format!("/{filter}\n"));
        assert!(shown(&top).contains(&found), "{filter}: {:?}", shown(&top));
        assert!(shown(&top).len() < 3, "{filter}");
        press(&mut top, "\u{1b}");
    }
    press(&mut top, "/q?s");
    assert!(top.is_typing && !top.is_helping, "letters are letters there");
    assert!(lines(&top, 100, 20).iter().any(|line| line.contains("Esc shows all")));
}

#[test]
fn a_paused_screen_stays() {
    let mut top = top();
    let before = lines(&top, 120, 20);
    press(&mut top, " ");
    top.take(Sample::new(Instant::now() + Duration::from_secs(9), &found(9_000, 9)));
    let after = lines(&top, 120, 20);
    assert!(after[0].starts_with("urxe top  paused") && before[1..] == after[1..], "{after:?}");
    press(&mut top, " ");
    top.take(Sample::new(Instant::now() + Duration::from_secs(9), &found(9_000, 9)));
    assert_ne!(before[1..], lines(&top, 120, 20)[1..]);
}

#[test]
fn details_of_a_queue_pair() {
    let mut top = top();
    press(&mut top, "\n");
    let drawn = lines(&top, 80, 30);
    let has = |words: &[&str]| {
        assert!(drawn.iter().any(|line| words.iter().all(|word| line.contains(word))), "{words:?}\n{drawn:#?}");
    };
    has(&["QP 0x000111 (273)  RC  RTS"]);
    has(&["peer", "10.0.0.2 0x000222, over UDP"]);
    has(&["process", "41 ib_write?[2J, urxe0 on eth0"]);
    has(&["PSN", "sends 6000 next, expects 7"]);
    has(&["window", "64 packets"]);
    has(&["sent", "2.00M B/s; 5.00M bytes in all; at most 2.00M B/s below"]);
    has(&["completer_retry_err", "4", "0.5"]);
    assert!(!drawn.iter().any(|line| line.contains("ack_timeout")), "0 is not shown");
    press(&mut top, "a");
    assert!(lines(&top, 80, 30).iter().any(|line| line.contains("ack_timeout")));
    // What is gone is said to be.
    top.take(Sample::new(Instant::now(), &Found::default()));
    assert_eq!(lines(&top, 80, 30)[1], "QP 0x000111 of process 41 is gone; Esc goes back");
    press(&mut top, "\u{1b}");
    assert_eq!(lines(&top, 80, 30)[1], "no process of this network uses urxe");
}

#[test]
fn details_of_a_device() {
    let mut top = top();
    press(&mut top, "\tj\n");
    let lines = lines(&top, 80, 12);
    assert_eq!(
        lines[1..5],
        [
            "urxe0 on eth0",
            "process   7 server",
            "addresses 10.0.0.1 fe80::1",
            "objects   2 queue pairs, 3 memory regions of 1.05M bytes"
        ]
    );
}

#[test]
fn counters_scroll() {
    let mut top = top();
    press(&mut top, "\na");
    lines(&top, 80, 12);
    press(&mut top, "GG");
    let end = lines(&top, 80, 12);
    assert!(end.iter().any(|line| line.starts_with("tx_packets")), "{end:?}");
    press(&mut top, "k");
    assert_ne!(end, lines(&top, 80, 12), "one line back is one line back");
}

#[test]
fn help_says_every_key() {
    let mut top = top();
    press(&mut top, "?");
    let drawn = lines(&top, 80, 30).join("\n");
    for word in
        ["quit", "sort", "filter", "pause", "Tab", "details", "WINDOW", "RETRIES", "TIMEOUTS", "RNR", "NAKS", "DROPS"]
    {
        assert!(drawn.contains(word), "{word}: {drawn}");
    }
    press(&mut top, "s");
    assert!(!top.is_helping);
}

#[test]
fn keys_that_end_it() {
    let mut top = top();
    assert_eq!(top.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)), Next::Quit);
    assert_eq!(top.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
    assert_eq!(top.press(KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL)), Next::Suspend);
    press(&mut top, "/");
    assert_eq!(top.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
}

#[test]
fn a_counter_that_begins_again_has_no_rate() {
    let mut top = top();
    top.take(Sample::new(Instant::now() + Duration::from_secs(9), &found(1, 0)));
    let row = lines(&top, 160, 20).into_iter().find(|line| line.contains(" 0x000111  RC")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[6..10], ["10.0.0.2", "0x000222", "0", "0"], "{row}");
}

/// Any user may say anything in a report.
#[test]
fn thousands_of_queue_pairs() {
    let qps: Vec<Value> = (0..10_000).map(|index| qp(index, 1, index, u64::MAX)).collect();
    let mut top = Top::new(String::new());
    let sample = || Found {
        devices: vec![device(u64::MAX, &"x".repeat(10_000), &qps.clone().into(), u64::MAX >> 12)],
        silent: 0,
    };
    top.take(Sample::new(Instant::now(), &sample()));
    top.take(Sample::new(Instant::now(), &sample()));
    press(&mut top, "GG");
    assert!(lines(&top, 100, 30).iter().any(|line| line.contains("0x00270f")));
}

/// Run in a terminal of its own by [`a_panic_restores_the_terminal`].
#[test]
#[ignore = "panics; run by a_panic_restores_the_terminal"]
fn panics_with_the_terminal_set_up() {
    let mut terminal = ratatui::try_init().unwrap();
    terminal.draw(|frame| draw(frame, &top())).unwrap();
    panic!("as by a mistake");
}

/// By script(1), which has a terminal.
#[test]
fn a_panic_restores_the_terminal() {
    let this = std::env::current_exe().unwrap();
    let test = "top::tests::panics_with_the_terminal_set_up --exact --ignored --nocapture";
    let run = format!("stty rows 24 cols 80; stty -a; {} {test}; stty -a", this.display());
    let script = std::process::Command::new("script")
        .args(["-q", "-c", &run, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&script.stdout);
    let (before, after) = said.split_once("\u{1b}[?1049h").expect(&said);
    let (drawn, after) = after.split_once("\u{1b}[?1049l").expect(&said);
    assert!(drawn.contains("urxe top") && !drawn.contains("as by a mistake"), "{drawn}");
    assert!(after.contains("as by a mistake"), "{after}");
    let settings = |of: &str| of[of.rfind("speed").expect(&said)..].to_owned();
    let flags = |of: &str| {
        of.split([';', '\r', '\n', ' ']).filter(|word| ["icanon", "echo", "isig", "opost"].contains(word)).count()
    };
    assert_eq!((flags(&settings(before)), flags(&settings(after))), (4, 4), "{said}");
}
