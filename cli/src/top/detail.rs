//! Details of one queue pair or device: what it is, its rates over the last minutes, and its counters.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Wrap};

use super::cell::{Cell, short};
use super::columns::{RX_BYTES, TX_BYTES};
use super::sample::{Device, Key, QueuePair};
use super::state::Top;
use super::style::{BOLD, DIM, TROUBLE};
use crate::status::HARMLESS;

/// Rows of bars, and a screen that has room for them.
const BARS: u16 = 3;
const HIGH: u16 = 18;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, top: &Top, key: &Key) {
    let Some(sample) = top.sample() else { return };
    let facts = match (sample.qp(key), sample.device(key)) {
        (Some(qp), _) => of_qp(qp),
        (_, Some(device)) => of_device(device),
        (None, None) => {
            let what = match key.qpn {
                Some(qpn) => format!("QP {qpn:#08x} of process {} is gone; Esc goes back", key.pid),
                None => format!("{} of process {} is closed; Esc goes back", key.device, key.pid),
            };
            frame.render_widget(Paragraph::new(what).wrap(Wrap { trim: true }), area);
            return;
        }
    };
    let is_high = area.height >= HIGH;
    let bars = Constraint::Length(if is_high { BARS + 1 } else { 1 });
    let of_facts = Constraint::Length(u16::try_from(facts.len()).unwrap_or(u16::MAX));
    let rooms = [of_facts, bars, bars, Constraint::Length(u16::from(is_high)), Constraint::Min(0)];
    let [above, sent, received, _, below] = Layout::vertical(rooms).areas(area);
    frame.render_widget(Paragraph::new(facts), above);
    let (tx, rx): (Vec<u64>, Vec<u64>) = top.history(key).unzip();
    rate(frame, sent, &rate_line(top, key, "sent", TX_BYTES), &tx);
    rate(frame, received, &rate_line(top, key, "received", RX_BYTES), &rx);
    counters(frame, below, top, key);
}

fn fact(name: &str, value: String) -> Line<'static> {
    Line::from(vec![Span::styled(format!("{name:<10}"), DIM), value.into()])
}

fn of_qp(qp: &QueuePair) -> Vec<Line<'static>> {
    let QueuePair { key, program, netdev, service, state, peer, way, sq_psn, rq_psn, window, .. } = qp;
    let way = match way.as_str() {
        "shm" => ", through memory",
        "udp" => ", over UDP",
        _ => "",
    };
    let peer = if peer.is_empty() { "none".to_owned() } else { format!("{peer}{way}") };
    let qpn = key.qpn.unwrap_or_default();
    vec![
        Line::styled(format!("QP {qpn:#08x} ({qpn})  {service}  {state}"), BOLD),
        fact("peer", peer),
        fact("process", format!("{} {program}, {} on {netdev}", key.pid, key.device)),
        fact("PSN", format!("sends {sq_psn} next, expects {rq_psn}")),
        fact("window", window.map_or("?".to_owned(), |window| format!("{window} packets"))),
    ]
}

fn of_device(device: &Device) -> Vec<Line<'static>> {
    let Device { key, program, netdev, addresses, qps, mrs, mr_bytes, .. } = device;
    let bytes = Cell::Count(*mr_bytes);
    vec![
        Line::styled(format!("{} on {netdev}", key.device), BOLD),
        fact("process", format!("{} {program}", key.pid)),
        fact("addresses", addresses.clone()),
        fact("objects", format!("{qps} queue pairs, {mrs} memory regions of {bytes} bytes")),
    ]
}

/// A rate now, and what has been counted.
fn rate_line(top: &Top, key: &Key, name: &str, names: &[&str]) -> Line<'static> {
    let (total, now) = (Cell::Count(top.sum(key, names)), Cell::rate(top.rate(key, names)));
    fact(name, format!("{now} B/s; {total} bytes in all"))
}

/// The line of a rate, and the rates before as bars.
fn rate(frame: &mut Frame<'_>, area: Rect, line: &Line<'_>, rates: &[u64]) {
    let [above, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let newest = &rates[rates.len().saturating_sub(usize::from(below.width))..];
    let mut line = line.clone();
    if let Some(most) = newest.iter().max().filter(|_| below.height > 0) {
        line.push_span(format!("; at most {} B/s below", Cell::Count(*most)));
    }
    frame.render_widget(line, above);
    frame.render_widget(Sparkline::default().data(newest), below);
}

fn counters(frame: &mut Frame<'_>, area: Rect, top: &Top, key: &Key) {
    let [heading, below] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let all = top.sample().and_then(|sample| sample.counters(key)).into_iter().flatten();
    let mut shown: Vec<_> = all.filter(|(_, value)| top.all || **value > 0).collect();
    // Trouble first; each part by name.
    shown.sort_by_key(|(name, _)| HARMLESS.contains(&name.as_str()));
    let line = |(name, value): (&String, &u64)| {
        let rate = top.rate(key, &[name]);
        let grows = rate.is_some_and(|rate| rate > 0.0) && !HARMLESS.contains(&name.as_str());
        let rate = rate.map_or("-".to_owned(), short);
        Line::styled(format!("{name:<28}{value:>20}{rate:>12}"), if grows { TROUBLE } else { Style::new() })
    };
    let lines: Vec<Line<'_>> = shown.into_iter().map(line).collect();
    let title = format!("{:<28}{:>20}{:>12}", "counter", "in all", "per second");
    frame.render_widget(Line::styled(title, BOLD), heading);
    let scroll = top.scrolled(lines.len(), below.height);
    frame.render_widget(Paragraph::new(lines).scroll((scroll, 0)), below);
}
