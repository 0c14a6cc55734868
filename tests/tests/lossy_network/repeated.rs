//! Packets that are sent again, and those of them in vain.

use anyhow::{Context as _, Result};
use urxe_tests::{Host, Perftest, host_counters};

/// Packets of data that a client has sent or got, and those that it has sent again, and asked for again, in vain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repeated {
    pub(super) packets: u64,
    pub(super) again: u64,
    pub(super) in_vain: u64,
}

impl Repeated {
    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            again: self.again - before.again,
            in_vain: self.in_vain - before.in_vain,
        }
    }
}

/// Streams with `program` from or to `there`, until `look` has seen enough of what is repeated. Returns what it saw last.
pub(super) fn watch_repeated(
    program: &str,
    here: &Host,
    there: &Host,
    mut look: impl FnMut(Repeated) -> bool,
) -> Result<Repeated> {
    let mut last = Repeated::default();
    Perftest::start(program, &["-s", "65536", "-u", "16", "--run_infinitely"], here, there)?
        .watch("hardly any packet is sent again in vain", || {
            let counters = ["sack_connections", "tx_packets", "rx_packets", "sack_retransmitted", "sack_spurious"];
            let counts = host_counters(there, &counters)?;
            let &[connections, sent, received, again, in_vain] = &counts[..] else { return Ok(false) };
            last = Repeated { packets: sent.max(received), again, in_vain };
            // A client that is slow to say what it counts has counted nothing.
            Ok(connections > 0 && look(last))
        })
        .with_context(|| format!("{program}: {last:?}"))?;
    Ok(last)
}

/// Packets of which one in a thousand is sent again in vain at most. Beside other programs an end waits for a processor until it is asked
/// whether it is there, so there are several attempts.
const ENOUGH: u64 = 20_000;

/// Streams with `program` until hardly any of so many packets is sent again in vain.
pub(super) fn ensure_few_in_vain(program: &str, here: &Host, there: &Host) -> Result<()> {
    let mut before = Repeated::default();
    watch_repeated(program, here, there, |now| {
        let more = now.since(before);
        let has_enough = more.packets >= ENOUGH;
        if has_enough {
            before = now;
        }
        has_enough && more.in_vain * 1000 <= more.packets
    })
    .map(drop)
}
