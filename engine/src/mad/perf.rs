//! Performance management (IBA 16.1): a port's answers about its counters.

use urxe_wire::mad::perf::{self, Attribute, COUNTERS};
use urxe_wire::mad::{MAD_LEN, Mad};

/// Values of all counters, by [`Counter`](perf::Counter).
pub type Values = [u64; COUNTERS];

/// Number of the only port, and of all ports.
const PORT: u8 = 1;
const ALL_PORTS: u8 = 0xFF;

/// The counters' values at which they show 0. A `Set()` moves these: what counts is not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Performance {
    zero: Values,
}

/// Whether a datagram is for the port itself, whoever has registered for the class (`process_mad` of kernel drivers).
#[must_use]
pub const fn is_for_port(header: &Mad) -> bool {
    header.class == Mad::CLASS_PERF && matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET)
}

/// Answer to a request of which [`is_for_port`] is true, if the counters' values are of no importance to it: a request for
/// the class' own information, or one that is refused.
#[must_use]
pub fn answer_without_counters(request: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let header = Mad::of(request)?;
    let needs_counters = header.class_version == 1
        && Attribute::new(header.attribute_id).is_some_and(|attribute| {
            !matches!(attribute, Attribute::ClassPortInfo) && matches!(perf::port(request), PORT | ALL_PORTS)
        });
    if needs_counters { None } else { Performance::default().answer(request, &[0; COUNTERS]) }
}

/// Answer for a port of a node with this many, through which nothing passes: its counters stay at zero.
#[must_use]
pub fn answer_of_idle_port(request: &[u8; MAD_LEN], ports: u8) -> Option<[u8; MAD_LEN]> {
    let port = perf::port(request);
    let is_there = port <= ports || port == ALL_PORTS;
    // Every port is like the only one of a host.
    let mut asked = *request;
    if is_there {
        perf::put_port(&mut asked, PORT);
    }
    let mut answer = Performance::default().answer(&asked, &[0; COUNTERS])?;
    perf::put_port(&mut answer, port);
    Some(answer)
}

impl Performance {
    /// Counters that show 0 at these values.
    #[must_use]
    pub const fn starting_at(zero: Values) -> Self {
        Self { zero }
    }

    /// Values at which the counters show 0.
    #[must_use]
    pub const fn zero(&self) -> &Values {
        &self.zero
    }

    /// Answers a request of which [`is_for_port`] is true, when the counters have these values.
    pub fn answer(&mut self, request: &[u8; MAD_LEN], now: &Values) -> Option<[u8; MAD_LEN]> {
        let mut header = Mad::of(request)?;
        let is_set = header.method == Mad::METHOD_SET;
        let mut reply = *request;
        header.status = match Attribute::new(header.attribute_id) {
            _ if header.class_version != 1 => Mad::STATUS_BAD_VERSION,
            None => Mad::STATUS_BAD_METHOD_ATTRIBUTE,
            Some(Attribute::ClassPortInfo) if is_set => Mad::STATUS_BAD_METHOD_ATTRIBUTE,
            Some(Attribute::ClassPortInfo) => {
                perf::put_class_port_info(&mut reply);
                0
            }
            Some(_) if !matches!(perf::port(request), PORT | ALL_PORTS) => Mad::STATUS_INVALID_FIELD,
            Some(attribute) => {
                self.show(attribute, is_set, request, &mut reply, now);
                0
            }
        };
        header.method = Mad::METHOD_GET | Mad::RESPONSE;
        header.put(&mut reply);
        Some(reply)
    }

    fn show(
        &mut self,
        attribute: Attribute,
        is_set: bool,
        request: &[u8; MAD_LEN],
        reply: &mut [u8; MAD_LEN],
        now: &Values,
    ) {
        let selected = perf::selected(attribute, request);
        for field in perf::fields(attribute) {
            let index = field.counter as usize;
            let (Some(zero), Some(now)) = (self.zero.get_mut(index), now.get(index)) else { continue };
            if is_set && field.is_in(selected) {
                *zero = now.wrapping_sub(field.get(request));
            }
            // A process that was killed takes its counts along: a sum may be less than it was.
            field.put(reply, if *zero > *now && *zero - *now < 1 << 63 { 0 } else { now.wrapping_sub(*zero) });
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn performance_counters_start_again_where_they_are_set() {
        const PORT_COUNTERS: u16 = 0x12;
        let ask = |method, attribute_id, port, select: u16| {
            let mut datagram = [0; MAD_LEN];
            let header = Mad { transaction_id: 1, ..Mad::new(Mad::CLASS_PERF, 1, method, attribute_id) };
            header.emit(datagram.first_chunk_mut().unwrap());
            datagram[65] = port;
            datagram[66..68].copy_from_slice(&select.to_be_bytes());
            datagram
        };
        let packets = |answer: [u8; MAD_LEN]| u32::from_be_bytes(answer[64 + 36..64 + 40].try_into().unwrap());
        let status = |answer: [u8; MAD_LEN]| Mad::of(&answer).unwrap().status;
        let (mut performance, mut values) = (Performance::default(), [0; COUNTERS]);
        values[perf::Counter::RcvPackets as usize] = 12;
        let mut answer = |datagram, values: &Values| performance.answer(&datagram, values).unwrap();
        assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 1, 0), &values)), 12);
        assert_eq!(packets(answer(ask(2, PORT_COUNTERS, 1, 0x4000), &values)), 12, "not selected");
        assert_eq!(packets(answer(ask(2, PORT_COUNTERS, 1, 0x8000), &values)), 0);
        values[perf::Counter::RcvPackets as usize] = 15;
        assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 255, 0), &values)), 3);
        let extended = answer(ask(1, 0x1D, 1, 0), &values);
        assert_eq!(extended[64 + 32..64 + 40], 3_u64.to_be_bytes());
        assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 1, 0), &[0; 17])), 0, "a process has gone, with its counts");
        assert_eq!(status(answer(ask(1, 0x99, 1, 0), &values)), Mad::STATUS_BAD_METHOD_ATTRIBUTE);
        assert_eq!(status(answer(ask(1, PORT_COUNTERS, 2, 0), &values)), Mad::STATUS_INVALID_FIELD);
        let info = answer(ask(1, 1, 0, 0), &values);
        assert_eq!((info[3], info[64..68].to_vec()), (0x81, vec![1, 1, 0x15, 0]));
    }
}
