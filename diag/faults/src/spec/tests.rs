use std::net::Ipv4Addr;

use urxe_explain::Verb;
use urxe_wire::{NakCode, Opcode, Operation, Qpn, Syndrome, Transport};

use super::value::chance;
use super::*;
use crate::chance::Chance;
use crate::rule::Occurrence;
use crate::sight::Direction;
use crate::{Qp, Refused, Sight, Verdict};

const QP: Qp = Qp { qpn: Qpn::new(17), made: Some(2) };

fn sight(operation: Operation, direction: Direction) -> Sight {
    let opcode = Opcode::new(Transport::Rc, operation).unwrap();
    Sight { direction, opcode, qp: QP, peer: Ipv4Addr::LOCALHOST.into(), len: 100 }
}

fn script(text: &str) -> Script {
    text.parse().unwrap_or_else(|error: Invalid| panic!("{error}"))
}

#[test]
fn the_same_seed_strikes_the_same_packets() {
    let run = |seed: u32| -> Vec<Verdict> {
        let mut script = script(&format!("drop=5%,dup=5%,reorder=5%/3,corrupt=5%,seed={seed}"));
        (0..1000).map(|_| script.packet(&sight(Operation::SendOnly, Direction::Sent))).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let hits = run(3).iter().filter(|verdict| **verdict != Verdict::Pass).count();
    assert!((100..300).contains(&hits), "{hits}");
}

#[test]
fn hits_are_counted_by_rule() {
    let mut script = script("drop,nth=2; fail=reg_mr:ENOMEM,nth=99; dup=1%,corrupt,opcode=SEND; remove");
    let mut copy = script.clone();
    for _ in 0..4 {
        script.packet(&sight(Operation::SendOnly, Direction::Sent));
    }
    copy.packet(&sight(Operation::SendOnly, Direction::Sent));
    assert_eq!(copy.verb(Verb::RegMr), None);
    let told: Vec<_> = script.counters().map(|counter| (counter.rule(), counter.hits())).collect();
    let wanted = [("drop,nth=2", 1), ("fail=reg_mr:ENOMEM,nth=99", 0), ("dup=1%,corrupt,opcode=SEND", 4)];
    assert_eq!(told, wanted);
}

#[test]
fn aims() {
    let mut aimed = script("drop,opcode=READ_RESPONSE,dir=rx,nth=2..3; nak=access,opcode=ACK");
    let responses = [0; 4].map(|_| aimed.packet(&sight(Operation::ReadResponseFirst, Direction::Received)));
    assert_eq!(responses, [Verdict::Pass, Verdict::Drop, Verdict::Drop, Verdict::Pass]);
    assert_eq!(aimed.packet(&sight(Operation::ReadResponseFirst, Direction::Sent)), Verdict::Pass);
    let refusal = Verdict::Refuse(Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(aimed.packet(&sight(Operation::Acknowledge, Direction::Sent)), refusal);
    assert_eq!(script("drop,qp=18").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
    assert_eq!(script("drop,qp=17").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Drop);
    assert_eq!(script("drop,qp=@1").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
    assert_eq!(script("drop,qp=@2").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Drop);
    assert_eq!(script("drop,peer=10.0.0.1").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
    // Requests cannot be refused, only their responses can.
    assert_eq!(script("nak=rnr").packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Pass);
}

#[test]
fn payloads_are_mutated_by_the_seed() {
    let mutated = |text: &str, operation, qp| {
        let mut all = script(text);
        all.load_dictionaries(|path| Ok(format!("\"{path}\""))).unwrap();
        let Verdict::Mutate(id) = all.packet(&Sight { qp, ..sight(operation, Direction::Sent) }) else {
            return None;
        };
        let mut bytes = [0; 64];
        all.mutate(id, &mut bytes);
        Some(bytes)
    };
    let first = mutated("mutate=payload,seed=5", Operation::SendOnly, QP).unwrap();
    assert_eq!(mutated("mutate=payload,seed=5", Operation::SendOnly, QP), Some(first));
    assert_ne!(mutated("mutate=payload,seed=6", Operation::SendOnly, QP), Some(first));
    let token = |seed: u32| {
        let text = format!("mutate=payload,dict=WORD,seed={seed}");
        mutated(&text, Operation::SendOnly, QP).unwrap().windows(4).any(|part| part == b"WORD")
    };
    assert!((0..100).any(token));
    // 100 bytes have a payload everywhere but in an ACK that is an ACK.
    assert_eq!(
        script("mutate=payload").packet(&Sight { len: 20, ..sight(Operation::Acknowledge, Direction::Sent) }),
        Verdict::Pass
    );
    assert_eq!(
        script("mutate=payload").packet(&Sight { len: 32, ..sight(Operation::WriteOnly, Direction::Sent) }),
        Verdict::Pass
    );
    let cm = Qp { qpn: Qpn::GSI, made: None };
    assert_eq!(mutated("mutate=payload", Operation::SendOnly, cm), None);
    assert!(mutated("mutate=payload,qp=1", Operation::SendOnly, cm).is_some());
    let unread = script("mutate=payload,dict=x").load_dictionaries(|_| Ok("x".to_owned())).unwrap_err();
    assert_eq!(unread.to_string(), "dict=x: line 1, column 2: expected a text in quotes");
}

#[test]
fn bursts_take_packets_in_a_row() {
    let mut bursts = script("burst=100%/2,nth=2..4");
    let verdicts = [0; 5].map(|_| bursts.packet(&sight(Operation::SendOnly, Direction::Sent)));
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Drop, Verdict::Drop, Verdict::Drop, Verdict::Pass]);
}

#[test]
fn delays_are_within_their_range() {
    let mut delayed = script("delay=50us..2ms,seed=7");
    for _ in 0..100 {
        let Verdict::Delay(by) = delayed.packet(&sight(Operation::SendOnly, Direction::Sent)) else { panic!() };
        assert!((Duration::from_micros(50)..=Duration::from_millis(2)).contains(&by), "{by:?}");
    }
    let mut any = script(&format!("delay=0ns..{}ns", u64::MAX));
    assert!(matches!(any.packet(&sight(Operation::SendOnly, Direction::Sent)), Verdict::Delay(_)));
}

#[test]
fn verbs_completions_and_events() {
    let mut all = script("fail=reg_mr:ENOMEM,nth=2; wc=REM_ACCESS_ERR,dir=tx,nth=1; event=PORT_ERR,after=100ms");
    assert_eq!([0; 3].map(|_| all.verb(Verb::RegMr)), [None, Some(Refused(12)), None]);
    assert_eq!(all.verb(Verb::CreateQp), None);
    let mut posts = script("fail=post_send:ENOMEM; fail=create_qp_ex:EAGAIN; fail=wr_complete:EIO");
    let errnos = [Verb::PostSend, Verb::WrComplete, Verb::CreateQp, Verb::CreateQpEx].map(|verb| posts.verb(verb));
    assert_eq!(errnos, [12, 12, 11, 11].map(|errno| Some(Refused(errno))));
    assert_eq!(script("fail=wr_complete:EIO").verb(Verb::PostSend), None);
    assert_eq!(all.completion(QP, Direction::Received), None);
    assert_eq!(all.completion(QP, Direction::Sent), Some(Refused(10)));
    assert_eq!(all.completion(QP, Direction::Sent), None);
    let what = Occurrence::Event(10);
    assert_eq!(all.take_announcements(), [Announcement { what, after: Duration::from_millis(100) }]);
    assert!(all.take_announcements().is_empty(), "once");
}

#[test]
fn steps_follow_one_another() {
    let mut all =
        script("dup,nth=5; step,packets=2; step,packets=2; drop; step,lasts=10ms; corrupt; remove,after=1ms; step");
    let packets = |all: &mut Script, count| -> Vec<Verdict> {
        (0..count).map(|_| all.packet(&sight(Operation::SendOnly, Direction::Sent))).collect()
    };
    assert_eq!(packets(&mut all, 2), [Verdict::Pass; 2]);
    assert_eq!(packets(&mut all, 2), [Verdict::Drop; 2]);
    // What always holds counts on.
    assert_eq!(packets(&mut all, 1), [Verdict::Duplicate]);
    assert!(matches!(packets(&mut all, 1)[..], [Verdict::Corrupt(_)]));
    all.at(Duration::from_millis(4));
    assert_eq!(all.next_step(), Some(Duration::from_millis(10)));
    let removal = Announcement { what: Occurrence::Removal, after: Duration::from_millis(1) };
    assert_eq!(all.take_announcements(), [removal]);
    all.at(Duration::from_millis(10));
    assert_eq!((packets(&mut all, 3), all.next_step()), (vec![Verdict::Pass; 3], None));

    let mut again = script("step,packets=1; step,packets=2; drop,nth=1; repeat");
    let expected = [Verdict::Pass, Verdict::Drop, Verdict::Pass].repeat(3);
    assert_eq!(packets(&mut again, 9), expected, "counts begin anew with each step");
    assert!(script("step,lasts=500us; drop; step,lasts=500us; repeat").next_step().is_some());
    assert!(script("step,lasts=1ns; drop; step,packets=1; repeat").next_step().is_some());
    let mut timed = script("step,lasts=1s; step; fail=reg_mr:ENOMEM");
    assert_eq!(timed.verb(Verb::RegMr), None);
    timed.at(Duration::from_secs(1));
    assert_eq!(timed.verb(Verb::RegMr), Some(Refused(12)));
}

#[test]
fn chances_in_every_notation() {
    for text in ["1%", "1.0%", "0.01", "0.010000", "1/100"] {
        assert_eq!(chance(Some(text)), Some(Chance(10_000)), "{text}");
    }
    assert_eq!(chance(Some("1.0")), Some(Chance::ALWAYS));
    for text in ["1", "1.5", "0.0000001", "0.", ".", "x"] {
        assert_eq!(chance(Some(text)), None, "{text}");
    }
    let said = "drop=1".parse::<Script>().unwrap_err().to_string();
    assert_eq!(said, "`drop=1`: expected drop=1%, drop=0.01 or drop=1/100, up to 100%; drop alone is always");
}

#[test]
fn aims_that_mean_nothing_are_refused() {
    for (text, said) in [
        ("remove,nth=2", "`nth` in `remove,nth=2`: expected after=T"),
        ("event=PORT_ERR,qp=1", "`qp` in"),
        ("remove,after=1s,opcode=SEND", "`opcode` in"),
        ("fail=reg_mr:ENOMEM,qp=1", "no aim of `fail` but nth"),
        ("fail=reg_mr:ENOMEM,after=1s", "`after` in"),
        ("wc=REM_ACCESS_ERR,peer=10.0.0.1", "no aims of `wc` but qp, dir and nth"),
        ("drop,after=1s", "`after` in"),
        ("drop,remove,dir=tx", "`dir` in"),
    ] {
        let error = text.parse::<Script>().expect_err(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    for text in
        ["remove,after=1s", "wc=REM_ACCESS_ERR,qp=@1,dir=rx,nth=2", "drop,qp=1,opcode=SEND,peer=::1,dir=tx,nth=1"]
    {
        script(text);
    }
}

#[test]
fn work_requests_are_posted_in_two_ways() {
    let mut both = script("fail=post_send:ENOMEM,nth=2");
    let said = [Verb::PostSend, Verb::WrComplete, Verb::PostRecv, Verb::PostSend].map(|verb| both.verb(verb));
    assert_eq!(said, [None, Some(Refused(12)), None, None]);
    let mut one = script("fail=wr_complete:ENOMEM");
    assert_eq!((one.verb(Verb::PostSend), one.verb(Verb::WrComplete)), (None, Some(Refused(12))));
    let error = "fail=wr_rdma_write:EINVAL".parse::<Script>().unwrap_err().to_string();
    assert!(error.contains("expected wr_complete"), "{error}");
}

#[test]
fn the_grammar_names_what_there_is_and_its_examples_are_scripts() {
    for name in ACTIONS.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| word.len() > 1) {
        let prose = ["an", "action", "or", "aim"].contains(&name);
        assert!(prose || GRAMMAR.contains(name), "{name}");
    }
    for example in GRAMMAR.split_once("Examples\n").unwrap().1.lines() {
        script(example.trim());
    }
}

#[test]
fn scripts_of_several_lines() {
    let text = "# a bad day\nseed=9\ndrop=1% # now and then\n\nfail=create_qp:EAGAIN; qp_error,nth=3\n";
    let script = script(text);
    assert_eq!((script.seed, script.rules.len()), (9, 3));
    assert!(self::script("").rules.is_empty());
}

#[test]
fn errors_name_the_invalid_item() {
    for (text, item) in [
        ("drop=101%", "drop=101%"),
        ("drop=x", "drop=x"),
        ("lose=1%", "lose=1%"),
        ("reorder=1%", "reorder=1%"),
        ("burst=1%/0", "burst=1%/0"),
        ("mutate", "mutate"),
        ("mutate=headers", "mutate=headers"),
        ("mutate=payload/2", "mutate=payload/2"),
        ("drop,dict=x", "dict=x"),
        ("mutate=payload,dict=", "dict="),
        ("delay=2ms..1ms", "delay=2ms..1ms"),
        ("delay=5", "delay=5"),
        ("nak=maybe", "nak=maybe"),
        ("fail=reg_mr", "fail=reg_mr"),
        ("fail=reg_mr:EWHAT", "fail=reg_mr:EWHAT"),
        ("fail=reg_mrs:ENOMEM", "fail=reg_mrs:ENOMEM"),
        ("wc=SUCCESS", "wc=SUCCESS"),
        ("event=CQ_ERR", "event=CQ_ERR"),
        ("drop,opcode=JUMP", "opcode=JUMP"),
        ("drop,peer=here", "peer=here"),
        ("drop,dir=up", "dir=up"),
        ("drop,nth=0", "nth=0"),
        ("drop,qp=@0", "qp=@0"),
        ("drop,qp=first", "qp=first"),
        ("drop,nth=5..2", "nth=5..2"),
        ("seed=-1", "seed=-1"),
        ("step,packets=0", "step,packets=0"),
        ("step,lasts=5", "step,lasts=5"),
        ("step,drop", "step,drop"),
        ("repeat", "repeat"),
        ("step; drop; repeat", "repeat"),
        ("step,lasts=1ns; repeat", "repeat"),
        ("step,lasts=500us; drop; step,lasts=499us; repeat", "repeat"),
        ("step,packets=9; fail=reg_mr:ENOMEM", "fail=reg_mr"),
        ("remove=1", "remove=1"),
        ("qp=17", "qp=17"),
        ("drop=1%,", ""),
    ] {
        let error = text.parse::<Script>().expect_err(text);
        assert_eq!(error.item, item, "{text}: {error}");
        assert!(!error.expected.is_empty());
    }
}
