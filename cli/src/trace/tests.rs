//! Diagrams of captures made here: what the page's JSON holds, and what the order of packets tells.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use urxe_pcapng::Captured;
use urxe_wire::packet::Service;
use urxe_wire::{Aeth, Bth, Ext, Header, Msn, NakCode, Opcode, Operation, Psn, Qpn, Syndrome, Transport};

use super::ladder::Ladder;
use super::row::{Kind, Wait};
use super::{html, pairs, text};

pub(super) const NEAR: u32 = 0x11;
pub(super) const FAR: u32 = 0x22;

pub(super) fn packet(at: u64, there: bool, operation: Operation, psn: u32) -> Captured {
    let [near, far]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let (from, to, qpn) = if there { (near, far, FAR) } else { (far, near, NEAR) };
    let bth = Bth::new(Opcode::new(Transport::Rc, operation).unwrap(), Qpn::new(qpn), Psn::new(psn));
    let at = Duration::from_secs(1_700_000_000) + Duration::from_micros(at);
    Captured { at, from, to, header: None, bth, len: 0, payload: Vec::new(), outbound: None, comments: Vec::new() }
}

pub(super) fn request(at: u64, psn: u32) -> Captured {
    packet(at, true, Operation::SendOnly, psn)
}

pub(super) fn ack(at: u64, psn: u32) -> Captured {
    packet(at, false, Operation::Acknowledge, psn)
}

pub(super) fn nak(at: u64, psn: u32, syndrome: Syndrome) -> Captured {
    let ack = ack(at, psn);
    let ext = Ext::Aeth(Aeth { syndrome, msn: Msn::new(0) });
    Captured { header: Some(Header { bth: ack.bth, service: Service::Connected, ext }), ..ack }
}

pub(super) fn ladder(packets: &[Captured]) -> Ladder {
    let pairs = pairs::find(packets);
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    Ladder::new(&pairs[0], packets)
}

/// The JSON in a page.
fn data(page: &str) -> Value {
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

fn numbers(of: &Value) -> Vec<u64> {
    of.as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
}

#[test]
fn the_page_has_every_packet() {
    let mut packets = vec![request(0, 5), ack(7, 5), request(10, 6), request(300_010, 6), ack(300_020, 6)];
    packets[0].comments.push("</script><b>it's & \"so\"".to_owned());
    packets[0].outbound = Some(true);
    packets[1].len = 3;
    let page = html::draw(&[ladder(&packets)], &["a&b.pcapng".to_owned()], &["cut".to_owned()]);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("{{") && page.contains("a&amp;b.pcapng") && !page.contains("</script><b>"), "{page}");
    assert!(!page.contains("http://") && !page.contains("https://"), "nothing from the network");
    let data = data(&page);
    assert_eq!(data["warnings"][0], "cut");
    let exchange = &data["exchanges"][0];
    assert_eq!((&exchange["left"]["address"], &exchange["left"]["qp"]), (&"10.0.0.1".into(), &"0x11".into()));
    assert_eq!((&exchange["right"]["address"], &exchange["right"]["qp"]), (&"10.0.0.2".into(), &"0x22".into()));
    let psns: Vec<u64> = packets.iter().map(|packet| packet.bth.psn.get().into()).collect();
    assert_eq!(numbers(&exchange["psn"]), psns);
    assert_eq!(numbers(&exchange["len"]), [0, 3, 0, 0, 0]);
    assert_eq!(numbers(&exchange["at"]), [0, 7000, 3000, 300_000_000, 10_000]);
    let names = exchange["opcode"]
        .as_array()
        .unwrap()
        .iter()
        .map(|place| &data["opcodes"][usize::try_from(place.as_u64().unwrap()).unwrap()]);
    let names: Vec<Value> = names.cloned().collect();
    let wanted: Vec<Value> = packets.iter().map(|packet| packet.bth.opcode.to_string().into()).collect();
    assert_eq!(names, wanted);
    assert_eq!(exchange["notes"], serde_json::json!([[0, "left", "</script><b>it's & \"so\""]]));
    assert_eq!(exchange["wait"], serde_json::json!([[3, ["timeout", "ACK timeout: no answer for 300.0ms"]]]));
    let again: Vec<bool> = numbers(&exchange["flags"]).iter().map(|flags| flags & 8 != 0).collect();
    assert_eq!(again, [false, false, false, true, false]);
    assert_eq!(exchange["troubles"], 2);
}

#[test]
fn a_page_of_many_packets_stays_small() {
    let packets: Vec<_> = (0..100_000_u32)
        .map(|index| Captured { len: 4096, ..packet(index.into(), true, Operation::WriteMiddle, index) })
        .collect();
    let page = html::draw(&[ladder(&packets)], &[], &[]);
    assert!(page.len() < 40 * packets.len(), "{} bytes", page.len());
    assert_eq!(data(&page)["exchanges"][0]["psn"].as_array().unwrap().len(), packets.len());
    let text = text::draw(&ladder(&packets), false);
    assert!(text.contains("100000 x RC RDMA WRITE Middle PSN=0..99999") && text.lines().count() == 2, "{text}");
}

#[test]
fn reordered_is_not_lost() {
    let overtaken = ladder(&[request(0, 5), request(1, 7), request(2, 6), ack(9, 7)]);
    assert!(overtaken.rows[2].reordered && overtaken.rows[2].kind == Kind::Request);
    let lost = ladder(&[request(0, 5), request(1, 7), nak(4, 6, SEQUENCE), request(9, 6), request(10, 7), ack(20, 7)]);
    assert!(!lost.rows[3].reordered && lost.rows[3].kind == Kind::Again, "{:?}", lost.rows[3].notes);
    assert!(lost.rows.iter().all(|row| row.wait.is_none()), "a NAK is no timeout");
    assert!(text::draw(&lost, false).contains("! sent again: the first one was lost"));
}

pub(super) const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// Captured at both ends: one arrives behind a later one, one never.
#[test]
fn both_ends_tell_what_arrived() {
    let at = |time, psn, outbound| Captured { outbound: Some(outbound), ..request(time, psn) };
    let sent = [at(0, 5, true), at(1, 6, true), at(2, 7, true), at(3, 8, true)];
    let arrived = [at(10, 6, false), at(11, 5, false), at(13, 8, false)];
    let ladder = ladder(&[&sent[..], &arrived].concat());
    let seen: Vec<_> = ladder.rows.iter().map(|row| (row.psn.get(), row.lost, row.reordered)).collect();
    assert_eq!(seen, [(5, false, true), (6, false, false), (7, true, false), (8, false, false)]);
    assert_eq!(ladder.rows[0].flight, Some(Duration::from_micros(11)));
}

/// Packets that were lost and sent again arrived once: the second time.
#[test]
fn an_arrival_belongs_to_the_last_sending_before_it() {
    let at = |time, psn, outbound| Captured { outbound: Some(outbound), ..request(time, psn) };
    let sent = [at(0, 5, true), at(1, 6, true), at(4, 6, false), at(300, 5, true), at(301, 6, true)];
    let arrived = [at(305, 5, false), at(306, 6, false)];
    let ladder = ladder(&[&sent[..], &arrived].concat());
    let seen: Vec<_> = ladder.rows.iter().map(|row| (row.psn.get(), row.lost, row.reordered)).collect();
    assert_eq!(seen, [(5, true, false), (6, false, false), (5, false, false), (6, false, false)]);
    let flights: Vec<_> = ladder.rows.iter().map(|row| row.flight.map(|flight| flight.as_micros())).collect();
    assert_eq!(flights, [None, Some(3), Some(5), Some(5)]);
}

#[test]
fn a_pause_after_an_rnr_nak_is_no_timeout() {
    let rnr = Syndrome::RnrNak(urxe_wire::RnrTimer::new(1));
    let ladder = ladder(&[request(0, 5), nak(1, 5, rnr), request(5001, 5), ack(5003, 5)]);
    assert_eq!(ladder.rows[2].wait, Some(Wait::Rnr(Duration::from_micros(5001))));
}

/// The responder expects PSN 900, and says so.
#[test]
fn ends_with_other_psns_are_one_exchange() {
    let ladder = ladder(&[request(0, 5), nak(1, 900, SEQUENCE), request(100, 5), nak(101, 900, SEQUENCE)]);
    assert_eq!((ladder.left.qpn, ladder.right.qpn), (Some(NEAR), Some(FAR)));
    let said = &ladder.rows[0].notes[0].text;
    assert!(said.contains("begin with PSN 5, the responder speaks of PSN 900"), "{said}");
}

#[test]
fn a_truncated_file_is_told_of() {
    let mut writer = urxe_pcapng::Writer::new("test", 0);
    writer.interface("lo", "");
    let [from, to] = ["10.0.0.1:49152", "10.0.0.2:4791"].map(|at| at.parse().unwrap());
    let header = Header { bth: request(0, 5).bth, service: Service::Connected, ext: Ext::None };
    let mut bytes = vec![0; header.len() + 4];
    header.emit(&mut bytes);
    for at in [1, 2] {
        let addresses = urxe_pcapng::Addresses::new(from, to, 0);
        writer.packet(0, urxe_pcapng::Direction::Sent, at, &addresses, &bytes, &[]);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &writer.bytes()[..writer.bytes().len() - 3]).unwrap();
    let input = super::read(&[file.path().to_owned()]).unwrap();
    assert_eq!(input.packets.len(), 1);
    assert!(input.warnings.iter().any(|warning| warning.contains("ends within a record")), "{:?}", input.warnings);
}

#[test]
fn large_diagrams_are_warned_of() {
    assert_eq!((super::too_large(super::LARGE_PAGE), super::too_long(super::LONG_TEXT)), (None, None));
    let large = super::too_large(100 << 20).unwrap();
    assert_eq!(large, "the page has 100 MiB, and opens slowly: --qp draws one exchange");
    assert_eq!(super::too_long(20_001).unwrap(), "20001 packets: --html has search and filters");
}

#[test]
fn packets_that_are_cut_short_are_told_of() {
    // Ethernet, IPv4 and UDP of a datagram whose BTH was not captured whole (tcpdump -s 50).
    let mut frame = vec![0; 50];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..18].copy_from_slice(&[0x45, 0, 0, 60]);
    frame[23] = 17;
    frame[36..40].copy_from_slice(&[0x12, 0xb7, 0, 40]);
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 1, 0, 0, 0];
    for number in [1_u32, 0, 50, 74] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(&frame);
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), file).unwrap();
    let input = super::read(&[path.path().to_owned()]).unwrap();
    assert!(input.packets.is_empty());
    let said = &input.warnings[0];
    assert!(said.contains("packets that are cut short: 1;") && said.contains("tcpdump -s 0"), "{said}");
}
