//! Frames, specifications and rules against one another.

use alloc::vec;
use alloc::vec::Vec;

use super::filter::{self, run};
use super::frame::{Header, Headers};
use super::spec::{self, Actions, Match, SpecError};
use super::table::{Class, FlowTable, Rule};

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A frame of IPv4 and UDP to `port`, with this payload.
fn udp(tags: &[u16], port: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [HERE, THERE].concat();
    for tag in tags {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x12, 0x34]);
    frame.extend(port.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

fn ipv6_tcp() -> Vec<u8> {
    let mut frame = [HERE, THERE].concat();
    // Traffic class 0x12, flow label 0x34567.
    frame.extend([0x86, 0xdd, 0x61, 0x23, 0x45, 0x67, 0, 20, 6, 9]);
    frame.extend([1; 16]);
    frame.extend([2; 16]);
    frame.extend([0, 80, 0, 81]);
    frame.extend([0; 16]);
    frame
}

/// A specification: filters from `start` on, as C lays the structure out.
fn spec(kind: u32, start: usize, value: &[u8], mask: &[u8]) -> Vec<u8> {
    let size = (start + value.len() + mask.len()).next_multiple_of(4);
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend(u16::try_from(size).unwrap().to_ne_bytes());
    bytes.resize(start, 0);
    bytes.extend(value);
    bytes.extend(mask);
    bytes.resize(size, 0);
    bytes
}

fn eth(dst: [u8; 6], mask: [u8; 6], kind: u16, tci: u16) -> Vec<u8> {
    let filter =
        |dst: [u8; 6], kind: u16, tci: u16| [&dst[..], &[0; 6], &kind.to_be_bytes(), &tci.to_be_bytes()].concat();
    let of = |number: u16| if number == 0 { 0 } else { 0xffff };
    spec(0x20, 6, &filter(dst, kind, tci), &filter(mask, of(kind), if tci == 0 { 0 } else { 0x0fff }))
}

fn ports(kind: u32, dst: u16) -> Vec<u8> {
    spec(kind, 6, &[&dst.to_be_bytes()[..], &[0; 2]].concat(), &[0xff, 0xff, 0, 0])
}

fn matches(specs: &[Vec<u8>]) -> Match {
    spec::parse(&specs.concat(), u8::try_from(specs.len()).unwrap()).unwrap().0
}

#[track_caller]
fn check(specs: &[Vec<u8>], frame: &[u8], expected: bool) {
    let wanted = matches(specs);
    assert_eq!(wanted.is_met(&Headers::parse(frame)), expected);
    let rule =
        Rule { class: Class::Normal, priority: 0, wanted, actions: Actions::default(), dont_trap: false, target: () };
    let program = filter::program([rule].iter()).unwrap();
    assert!(run(&program, &untagged(frame)).unwrap() || !expected, "the filter holds back what the rule wants");
}

/// The frame as the kernel's filter sees it.
fn untagged(frame: &[u8]) -> Vec<u8> {
    match frame.get(12..14) {
        Some([0x81, 0x00]) if frame.len() >= 16 => [&frame[..12], &frame[16..]].concat(),
        _ => frame.to_vec(),
    }
}

#[test]
fn headers_behind_tags() {
    for tags in [&[][..], &[5], &[5, 6]] {
        let frame = udp(tags, 7, &[1, 2, 3]);
        let headers = Headers::parse(&frame);
        assert_eq!(headers.at(Header::EtherType, false).unwrap()[..2], [8, 0]);
        assert_eq!(headers.at(Header::VlanTci, false).map(|tci| tci[1]), tags.first().map(|_| 5));
        assert_eq!(headers.at(Header::Udp, false).unwrap()[..4], [0x12, 0x34, 0, 7]);
        assert!(
            headers.has(Header::Ipv4, false) && !headers.has(Header::Tcp, false) && !headers.has(Header::Ipv4, true)
        );
    }
    let three = udp(&[1, 2, 3], 7, &[]);
    assert!(!Headers::parse(&three).has(Header::Ipv4, false));
}

#[test]
fn a_header_that_is_cut_off_is_not_there() {
    let frame = udp(&[], 7, &[]);
    for length in 0..frame.len() {
        let headers = Headers::parse(&frame[..length]);
        assert!(!headers.has(Header::Udp, false), "{length}");
        assert_eq!(headers.has(Header::Ipv4, false), length >= 34);
        assert_eq!(headers.has(Header::Ethernet, false), length >= 14);
    }
}

#[test]
fn later_fragments_have_no_ports() {
    let mut frame = udp(&[], 7, &[]);
    frame[14 + 6] = 0x20;
    assert!(Headers::parse(&frame).has(Header::Udp, false));
    frame[14 + 7] = 1;
    assert!(!Headers::parse(&frame).has(Header::Udp, false));
}

#[test]
fn fields_of_each_layer() {
    let plain = udp(&[], 7, &[]);
    let tagged = udp(&[5], 7, &[]);
    check(&[eth(HERE, [0xff; 6], 0, 0)], &plain, true);
    check(&[eth(HERE, [0xff; 6], 0, 0)], &tagged, true);
    check(&[eth(THERE, [0xff; 6], 0, 0)], &plain, false);
    // Only the group bit is looked at.
    check(&[eth([0; 6], [1, 0, 0, 0, 0, 0], 0, 0)], &plain, true);
    check(&[eth([1, 9, 9, 9, 9, 9], [1, 0, 0, 0, 0, 0], 0, 0)], &plain, false);
    check(&[eth(HERE, [0xff; 6], 0x0800, 0)], &plain, true);
    check(&[eth(HERE, [0xff; 6], 0x0800, 0)], &tagged, true);
    check(&[eth(HERE, [0xff; 6], 0x86dd, 0)], &plain, false);
    check(&[eth(HERE, [0xff; 6], 0, 5)], &plain, false);
    check(&[eth(HERE, [0xff; 6], 0, 5)], &tagged, true);
    check(&[eth(HERE, [0xff; 6], 0, 6)], &tagged, false);
    check(&[eth(HERE, [0xff; 6], 0x0800, 5)], &udp(&[5, 6], 7, &[]), true);
    let from = |last: u8| spec(0x30, 8, &[10, 0, 0, last, 0, 0, 0, 0], &[255, 255, 255, 255, 0, 0, 0, 0]);
    check(&[from(1), ports(0x41, 7)], &plain, true);
    check(&[from(1), ports(0x41, 7)], &tagged, true);
    check(&[from(2)], &plain, false);
    check(&[ports(0x41, 8)], &plain, false);
    check(&[ports(0x40, 7)], &plain, false);
    let ttl =
        |ttl: u8| spec(0x32, 8, &[0, 0, 0, 0, 0, 0, 0, 0, 17, 0, ttl, 0], &[0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 255, 0]);
    check(&[ttl(64)], &plain, true);
    check(&[ttl(63)], &plain, false);
}

#[test]
fn fields_of_ipv6() {
    let frame = ipv6_tcp();
    let filter = |label: u32, next: u8, class: u8, hops: u8| {
        [&[1; 16][..], &[2; 16], &label.to_be_bytes(), &[next, class, hops, 0]].concat()
    };
    let mask = [&[255; 32][..], &[0, 0x0f, 0xff, 0xff], &[255, 255, 255, 0]].concat();
    let of = |value: Vec<u8>| spec(0x31, 8, &value, &mask);
    check(&[of(filter(0x34567, 6, 0x12, 9))], &frame, true);
    check(&[of(filter(0x34567, 6, 0x12, 9)), ports(0x40, 81)], &frame, true);
    check(&[of(filter(0x34568, 6, 0x12, 9))], &frame, false);
    check(&[of(filter(0x34567, 17, 0x12, 9))], &frame, false);
    check(&[of(filter(0x34567, 6, 0x13, 9))], &frame, false);
    check(&[of(filter(0x34567, 6, 0x12, 8))], &frame, false);
    check(&[of(filter(0x34567, 6, 0x12, 9))], &udp(&[], 7, &[]), false);
}

#[test]
fn tunnels() {
    let inner = udp(&[], 9, &[]);
    let vxlan = udp(&[], 4789, &[&[8, 0, 0, 0, 0, 0x12, 0x34, 0][..], &inner].concat());
    let vni = |vni: u32| spec(0x50, 8, &vni.to_be_bytes(), &[0xff; 4]);
    check(&[vni(0x1234), ports(0x141, 9)], &vxlan, true);
    check(&[vni(0x1235)], &vxlan, false);
    check(&[ports(0x141, 8)], &vxlan, false);
    check(&[vni(0x1234)], &inner, false);
    let mut gre = udp(&[], 0, &[]);
    gre.truncate(34);
    gre[23] = 47;
    gre.extend([0x20, 0, 8, 0, 0, 0, 0, 77]);
    gre.extend(&inner[14..]);
    let key = |key: u8| spec(0x51, 8, &[0, 0, 8, 0, 0, 0, 0, key], &[0, 0, 255, 255, 255, 255, 255, 255]);
    check(&[key(77), ports(0x141, 9)], &gre, true);
    check(&[key(78)], &gre, false);
    assert!(!Headers::parse(&gre).has(Header::Ethernet, true));
}

#[test]
fn malformed_lists_of_specifications_are_refused() {
    let good = eth(HERE, [0xff; 6], 0, 0);
    let parse = |bytes: &[u8], count| spec::parse(bytes, count).map(|_| ());
    assert_eq!(parse(&good, 1), Ok(()));
    assert_eq!(parse(&good, 2), Err(SpecError::Truncated));
    for length in 0..good.len() {
        assert_eq!(parse(&good[..length], 1), Err(SpecError::Truncated), "{length}");
    }
    let with_size = |size: u16| [&good[..4], &size.to_ne_bytes(), &good[6..]].concat();
    for size in [0, 5, 6, 37] {
        assert_eq!(parse(&with_size(size), 1), Err(SpecError::Truncated), "{size}");
    }
    assert_eq!(parse(&spec(0x21, 6, &[0; 16], &[0; 16]), 1), Err(SpecError::UnknownType(0x21)));
    assert_eq!(parse(&spec(0x2000, 6, &[], &[]), 1), Err(SpecError::UnknownType(0x2000)));
    assert_eq!(parse(&spec(0x34, 8, &[0; 8], &[0; 8]), 1), Err(SpecError::Unsupported(0x34)));
    assert_eq!(parse(&spec(0x151, 8, &[0; 8], &[0; 8]), 1), Err(SpecError::Unsupported(0x151)));
    let flags = spec(0x32, 8, &[0; 12], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(parse(&flags, 1), Err(SpecError::UnsupportedField(0x32)));
    let tag = spec(0x1000, 8, &7_u32.to_ne_bytes(), &[]);
    let drop = spec(0x1001, 8, &[], &[]);
    assert_eq!(spec::parse(&tag, 1).unwrap().1.tag, Some(7));
    assert_eq!(parse(&[&tag[..], &tag].concat(), 2), Err(SpecError::Actions));
    assert_eq!(parse(&[&tag[..], &drop].concat(), 2), Err(SpecError::Actions));
}

fn rule(class: Class, priority: u16, wanted: Match, target: u32) -> Rule<u32> {
    Rule { class, priority, wanted, actions: Actions::default(), dont_trap: false, target }
}

fn classified(table: &FlowTable<u32>, frame: &[u8]) -> Vec<u32> {
    let mut found = vec![];
    table.classify(&Headers::parse(frame), |rule| found.push(rule.target));
    found
}

#[test]
fn the_first_rule_by_priority_and_age_takes_a_frame() {
    let frame = udp(&[], 7, &[]);
    let to_port = || matches(&[ports(0x41, 7)]);
    let to_here = || matches(&[eth(HERE, [0xff; 6], 0, 0)]);
    let mut table = FlowTable::default();
    table.insert(rule(Class::AllDefault, 0, Match::default(), 1));
    assert_eq!(classified(&table, &frame), [1]);
    let low = table.insert(rule(Class::Normal, 5, to_port(), 2));
    assert_eq!(classified(&table, &frame), [2]);
    table.insert(rule(Class::Normal, 5, to_here(), 3));
    assert_eq!(classified(&table, &frame), [2], "of two of one priority, the older");
    table.insert(rule(Class::Normal, 5, to_port(), 4));
    assert_eq!(classified(&table, &frame), [2, 4], "equal rules share");
    table.remove(low).unwrap();
    assert_eq!(classified(&table, &frame), [3]);
    table.insert(rule(Class::Sniffer, 0, Match::default(), 5));
    assert_eq!(classified(&table, &frame), [3, 5]);
    table.insert(Rule { dont_trap: true, ..rule(Class::Normal, 0, to_here(), 6) });
    assert_eq!(classified(&table, &frame), [6, 3, 5]);
    table.insert(rule(Class::MulticastDefault, 0, Match::default(), 7));
    let mut multicast = frame;
    multicast[0] |= 1;
    multicast[14] = 0;
    assert_eq!(classified(&table, &multicast), [7, 5]);
    let mut sent = vec![];
    table.classify_sent(|rule| sent.push(rule.target));
    assert_eq!(sent, [5]);
}

#[test]
fn rules_that_do_not_trap_come_first_and_one_of_them_takes_a_frame() {
    const GROUP: [u8; 6] = [1, 0, 0, 0, 0, 0];
    let to_group = |kind| matches(&[eth(GROUP, GROUP, kind, 0)]);
    let shared = |priority, wanted, target| Rule { dont_trap: true, ..rule(Class::Normal, priority, wanted, target) };
    let mut ipv6 = ipv6_tcp();
    ipv6[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    let mut ipv4 = udp(&[], 7, &[]);
    ipv4[0] |= 1;
    // The rules of VPP's rdma driver for multicast: of IPv6, and of anything.
    let mut table = FlowTable::default();
    table.insert(shared(0, to_group(0x86dd), 1));
    table.insert(shared(0, to_group(0), 2));
    assert_eq!(classified(&table, &ipv6), [1], "one copy, though both match");
    assert_eq!(classified(&table, &ipv4), [2]);
    table.insert(shared(0, to_group(0x86dd), 3));
    assert_eq!(classified(&table, &ipv6), [1, 3], "equal rules share");
    table.insert(shared(1, to_group(0), 4));
    assert_eq!(classified(&table, &ipv6), [1, 3, 4], "the next priority has it as well");
    assert_eq!(classified(&table, &ipv4), [2, 4]);
    table.insert(rule(Class::Normal, 1, to_group(0), 5));
    table.insert(rule(Class::Normal, 2, to_group(0), 6));
    assert_eq!(classified(&table, &ipv6), [1, 3, 4, 5], "and the first that traps is the last");
    // A rule that does not trap comes before an older one of its priority that does.
    let mut table = FlowTable::default();
    table.insert(rule(Class::Normal, 0, to_group(0), 1));
    table.insert(shared(0, to_group(0), 2));
    assert_eq!(classified(&table, &ipv4), [2, 1]);
    let order: Vec<_> = table.rules().map(|rule| rule.target).collect();
    assert_eq!(order, [2, 1]);
}

#[test]
fn the_filter_is_of_all_rules() {
    let frame = udp(&[], 7, &[]);
    let mut rules = vec![rule(Class::Normal, 0, matches(&[ports(0x40, 7)]), 0)];
    let passes = |rules: &[Rule<u32>], frame: &[u8]| {
        filter::program(rules.iter()).is_none_or(|program| run(&program, frame).unwrap())
    };
    assert!(passes(&rules, &frame), "a rule of TCP alone does not say over what");
    rules[0].wanted = matches(&[spec(0x30, 8, &[0; 8], &[0; 8]), ports(0x40, 7)]);
    assert!(!passes(&rules, &frame) && !passes(&[], &frame));
    rules.push(rule(Class::Normal, 0, matches(&[eth(HERE, [0xff; 6], 0, 0)]), 0));
    assert!(passes(&rules, &frame));
    // The first rule looks beyond the end of this one.
    assert!(passes(&rules, &frame[..14]));
    assert!(!passes(&rules, &frame[..13]));
    rules.push(rule(Class::AllDefault, 0, Match::default(), 0));
    assert!(filter::program(rules.iter()).is_none());
}
