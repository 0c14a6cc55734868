#![no_main]
//! Connection management under any datagrams to QP1 and any commands, in any order: it does not panic, what it says can
//! be read, and it comes to rest.

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use urxe_engine::Instant;
use urxe_engine::cm::{Cm, Ends, Event, Verdict};
use urxe_wire::Gid;
use urxe_wire::cm::{CmMad, CommId, Message, RejReason};
use urxe_wire::mad::MAD_LEN;

const ENDS: Ends = Ends { local: Gid::new([0xA; 16]), remote: Gid::new([0xB; 16]) };

fn run(bytes: &[u8]) -> Result<()> {
    let mut u = Unstructured::new(bytes);
    let (mut cm, mut now, mut names) = (Cm::new(), Instant::default(), 100);
    let mut gone = Vec::new();
    while !u.is_empty() {
        // Few names, so that messages meet connections.
        let id = CommId(u.int_in_range(100..=107)?);
        match u.int_in_range(0..=9)? {
            0..=4 => {
                let mut mad = [0; MAD_LEN];
                let given = u.bytes(u.len().min(MAD_LEN))?;
                mad[..given.len()].copy_from_slice(given);
                // The header of a CM datagram, so that most get further than that.
                mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                mad[16] = 0;
                mad[17] = 0x10 + mad[17] % 11;
                if let Ok(parsed) = CmMad::parse(&mad) {
                    assert_eq!(CmMad::parse(&parsed.to_bytes()), Ok(parsed));
                    let verdict = u.int_in_range(0..=3)?;
                    cm.handle(now, ENDS, &parsed, &mut |_| match verdict {
                        0 => Verdict::Refuse,
                        1 => Verdict::Ignore,
                        _ => {
                            names += 1;
                            Verdict::Take(CommId(names))
                        }
                    });
                    if let Message::Req(req) = &parsed.message
                        && u.ratio(1, 4)?
                    {
                        if cm.connect(now, ENDS, req, 0).is_ok() {
                            gone.retain(|id| *id != req.local_id);
                        }
                    }
                    if let Message::Rep(rep) = &parsed.message {
                        let _ = cm.accept(now, id, rep, 0);
                    }
                }
            }
            5 => drop(cm.establish(id)),
            6 => drop(cm.reject(id, RejReason::CONSUMER_DEFINED, &[1, 2, 3], &[7; 148])),
            7 => drop(cm.disconnect(now, id)),
            8 => cm.release(now, id),
            _ => {
                if let Some(at) = cm.poll_timeout() {
                    now = at;
                    cm.handle_timeout(now);
                }
            }
        }
        while let Some(transmit) = cm.poll_transmit() {
            assert!(CmMad::parse(&transmit.payload).is_ok());
        }
        while let Some((id, event)) = cm.poll_event() {
            assert!(event != Event::Gone || !gone.contains(&id), "{id:?} has gone twice");
            if event == Event::Gone && id.0 > 107 {
                gone.push(id);
            }
        }
    }
    // Without news everything comes to rest.
    for _ in 0..100_000 {
        let Some(at) = cm.poll_timeout() else { return Ok(()) };
        assert!(at >= now);
        now = at;
        cm.handle_timeout(now);
        while cm.poll_transmit().is_some() {}
    }
    panic!("it never ends");
}

fuzz_target!(|bytes: &[u8]| {
    let _ = run(bytes);
});
