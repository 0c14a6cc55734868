#![no_main]
//! Flow specifications of any bytes, and any frames: the table, the filter, XDP and the checksums.

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;
use urxe_engine::flow::segment::{Protocol, Template, cut};
use urxe_engine::flow::{Actions, Class, FlowTable, Headers, Rule, checksum, filter, spec, xdp};

/// Longest frame that XDP takes, and the farthest place in one that it looks at.
const LONGEST: usize = 32_000;
const FARTHEST: usize = 16_000;
/// Rules that are not too many for a program.
const FEW: usize = 100;

fuzz_target!(|input: (Vec<(Vec<u8>, u8, u16)>, Vec<u8>)| {
    let (rules, mut frame) = input;
    let mut table = FlowTable::default();
    for (index, (bytes, count, priority)) in rules.iter().enumerate() {
        let Ok((wanted, _)) = spec::parse(bytes, *count) else { continue };
        // The list says how long it is.
        assert_eq!(
            spec::parse(&[&bytes[..], &[0xa5; 64]].concat(), *count).map(|parsed| parsed.0).as_ref(),
            Ok(&wanted)
        );
        let actions = Actions::default();
        let dont_trap = index % 3 == 0;
        table.insert(Rule { class: Class::Normal, priority: *priority, wanted, actions, dont_trap, target: index });
    }
    let headers = Headers::parse(&frame);
    let mut taken = Vec::new();
    table.classify(&headers, |rule| taken.push(rule));
    assert!(taken.iter().all(|rule| rule.wanted.is_met(&headers)));
    // The kernel takes the first tag out before it asks.
    let is_tagged = frame.len() >= 18 && [[0x81, 0x00], [0x88, 0xa8]].iter().any(|tag| frame[12..14] == *tag);
    let seen = if is_tagged { [&frame[..12], &frame[16..]].concat() } else { frame.clone() };
    if let Some(program) = filter::program(table.rules()) {
        let passes = filter::run(&program, &seen).expect("an instruction that there is none of");
        assert!(passes || taken.is_empty(), "the filter keeps what a rule wants");
    }
    let is_taken = taken.iter().any(|rule| !rule.dont_trap);
    let takes = xdp::program(table.rules(), LONGEST).map(|program| xdp::interpreter::run(&program, &frame));
    match takes {
        Some(takes) => {
            let takes = takes.expect("what the kernel would not allow");
            assert!(takes == is_taken || frame.len() > FARTHEST, "XDP takes what rules that trap take");
        }
        None => assert!(!is_taken || rules.len() > FEW, "without a program nothing is taken"),
    }
    black_box(checksum::is_right(&headers, false));
    let mut begun = frame.clone();
    checksum::complete_begun(&mut begun);
    if let Some(template) = Template::new(&frame) {
        let mut segment = [&frame[..], &[7; 100]].concat();
        template.finish(&mut segment, 1, 1000, true);
        assert!(Template::new(&segment[..frame.len()]).is_some(), "the header of a segment is one");
    }
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut whole = [&frame[..], &[7; 100]].concat();
        let (before, mut longest) = (whole.len(), 0);
        cut(&mut whole, protocol, 30, |segment| longest = longest.max(segment.len()));
        assert!(longest <= before, "a segment is no longer than its frame");
    }
    checksum::complete(&mut frame);
    checksum::fill(&mut frame);
    let again = Headers::parse(&frame);
    assert!(!checksum::is_right(&again, true) || checksum::is_right(&again, false), "what is filled in is right");
});
