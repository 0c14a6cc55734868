//! Attributes of the performance management class (IBA 16.1.3): layouts of counters as a table.

use super::MAD_LEN;
use super::field::{self, data, data_mut};
use crate::numbered::numbered;

/// Start of an attribute in a datagram of the class (IBA 16.1.1).
pub const DATA: usize = 64;

numbered! {
    /// Attributes of the class that are answered, by their ids.
    pub enum Attribute: u16 {
        /// `ClassPortInfo` (IBA 13.4.8.1).
        ClassPortInfo = 0x01,
        /// `PortCounters` (IBA 16.1.3.5).
        PortCounters = 0x12,
        /// `PortCountersExtended` (IBA 16.1.4.11).
        PortCountersExtended = 0x1D,
    }
}

/// Counters of a port, in the order of `PortCounters`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Counter {
    /// `SymbolErrorCounter`
    SymbolError,
    /// `LinkErrorRecoveryCounter`
    LinkErrorRecovery,
    /// `LinkDownedCounter`
    LinkDowned,
    /// `PortRcvErrors`
    RcvErrors,
    /// `PortRcvRemotePhysicalErrors`
    RcvRemotePhysicalErrors,
    /// `PortRcvSwitchRelayErrors`
    RcvSwitchRelayErrors,
    /// `PortXmitDiscards`
    XmitDiscards,
    /// `PortXmitConstraintErrors`
    XmitConstraintErrors,
    /// `PortRcvConstraintErrors`
    RcvConstraintErrors,
    /// `LocalLinkIntegrityErrors`
    LocalLinkIntegrityErrors,
    /// `ExcessiveBufferOverrunErrors`
    ExcessiveBufferOverrunErrors,
    /// `VL15Dropped`
    Vl15Dropped,
    /// `PortXmitData`, in words of 32 bits
    XmitData,
    /// `PortRcvData`, in words of 32 bits
    RcvData,
    /// `PortXmitPkts`
    XmitPackets,
    /// `PortRcvPkts`
    RcvPackets,
    /// `PortXmitWait`
    XmitWait,
}

/// Number of [`Counter`]s.
pub const COUNTERS: usize = Counter::XmitWait as usize + 1;

/// Place of a counter in an attribute.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Counter of the field.
    pub counter: Counter,
    place: field::Field,
    /// Bit of `CounterSelect` that names the counter; from 16 on of `CounterSelect2`.
    select: u32,
}

const fn field(counter: Counter, at: usize, bits: usize, select: u32) -> Field {
    Field { counter, place: field::Field::bits(at, 0, bits), select }
}

/// `CounterSelect2` of `PortCounters` and `PortCountersExtended` from this bit on.
const SELECT_2: u32 = 16;

const PORT_COUNTERS: [Field; COUNTERS] = [
    field(Counter::SymbolError, 4, 16, 0),
    field(Counter::LinkErrorRecovery, 6, 8, 1),
    field(Counter::LinkDowned, 7, 8, 2),
    field(Counter::RcvErrors, 8, 16, 3),
    field(Counter::RcvRemotePhysicalErrors, 10, 16, 4),
    field(Counter::RcvSwitchRelayErrors, 12, 16, 5),
    field(Counter::XmitDiscards, 14, 16, 6),
    field(Counter::XmitConstraintErrors, 16, 8, 7),
    field(Counter::RcvConstraintErrors, 17, 8, 8),
    field(Counter::LocalLinkIntegrityErrors, 19, 4, 9),
    Field { counter: Counter::ExcessiveBufferOverrunErrors, place: field::Field::bits(19, 4, 4), select: 10 },
    field(Counter::Vl15Dropped, 22, 16, 11),
    field(Counter::XmitData, 24, 32, 12),
    field(Counter::RcvData, 28, 32, 13),
    field(Counter::XmitPackets, 32, 32, 14),
    field(Counter::RcvPackets, 36, 32, 15),
    field(Counter::XmitWait, 40, 32, SELECT_2),
];

const PORT_COUNTERS_EXTENDED: [Field; 4] = [
    field(Counter::XmitData, 8, 64, 0),
    field(Counter::RcvData, 16, 64, 1),
    field(Counter::XmitPackets, 24, 64, 2),
    field(Counter::RcvPackets, 32, 64, 3),
];

/// Counters of an attribute.
#[must_use]
pub const fn fields(attribute: Attribute) -> &'static [Field] {
    match attribute {
        Attribute::ClassPortInfo => &[],
        Attribute::PortCounters => &PORT_COUNTERS,
        Attribute::PortCountersExtended => &PORT_COUNTERS_EXTENDED,
    }
}

/// `PortSelect` of an attribute with counters.
#[must_use]
pub const fn port(datagram: &[u8; MAD_LEN]) -> u8 {
    datagram[DATA + 1]
}

/// Writes `PortSelect`.
pub const fn put_port(datagram: &mut [u8; MAD_LEN], port: u8) {
    datagram[DATA + 1] = port;
}

/// `CounterSelect`, and from bit 16 on `CounterSelect2`, which stand elsewhere in each attribute.
#[must_use]
pub fn selected(attribute: Attribute, datagram: &[u8; MAD_LEN]) -> u32 {
    let first = u32::from(u16::from_be_bytes([datagram[DATA + 2], datagram[DATA + 3]]));
    match attribute {
        Attribute::PortCounters => first | u32::from(datagram[DATA + 18]) << SELECT_2,
        _ => first,
    }
}

impl Field {
    /// Whether [`selected`] has chosen the counter.
    #[must_use]
    pub const fn is_in(&self, selected: u32) -> bool {
        selected & (1 << self.select) != 0
    }

    /// Reads the counter.
    #[must_use]
    pub fn get(&self, datagram: &[u8; MAD_LEN]) -> u64 {
        self.place.get(data(datagram, DATA))
    }

    /// Writes the counter, or the largest value where it does not fit: counters stay there (IBA 16.1.3.5).
    pub fn put(&self, datagram: &mut [u8; MAD_LEN], value: u64) {
        self.place.put(data_mut(datagram, DATA), value.min(self.place.largest()));
    }
}

/// Writes `ClassPortInfo` of the class (IBA 13.4.8.1, 16.1.3.1): versions, capabilities and response time.
pub fn put_class_port_info(datagram: &mut [u8; MAD_LEN]) {
    /// `AllPortSelect`, `PortCountersExtended` without unicast and multicast counters, `PortXmitWait`.
    const CAPABILITIES: u16 = 1 << 8 | 1 << 10 | 1 << 12;
    /// `RespTimeValue`: 4.096 µs times two to the power of this, one second.
    const RESPONSE_TIME: u8 = 18;
    let [high, low] = CAPABILITIES.to_be_bytes();
    datagram[DATA..].fill(0);
    datagram[DATA..DATA + 8].copy_from_slice(&[1, 1, high, low, 0, 0, 0, RESPONSE_TIME]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_do_not_touch_each_other() {
        for attribute in [Attribute::PortCounters, Attribute::PortCountersExtended] {
            for field in fields(attribute) {
                let mut datagram = [0xA5; MAD_LEN];
                let others: std::vec::Vec<_> = fields(attribute).iter().map(|field| field.get(&datagram)).collect();
                field.put(&mut datagram, 3);
                for (other, before) in fields(attribute).iter().zip(others) {
                    let expected = if other.counter == field.counter { 3 } else { before };
                    assert_eq!(other.get(&datagram), expected, "{:?} and {:?}", field.counter, other.counter);
                }
            }
        }
    }

    #[test]
    fn counters_stay_at_their_largest_value() {
        let mut datagram = [0; MAD_LEN];
        for (field, largest) in PORT_COUNTERS.iter().zip([0xFFFF, 0xFF, 0xFF, 0xFFFF]) {
            field.put(&mut datagram, 1 << 40);
            assert_eq!(field.get(&datagram), largest);
        }
        assert_eq!(datagram[DATA + 4..DATA + 10], [0xFF; 6]);
        assert_eq!(datagram[DATA + 10], 0);
    }

    #[test]
    fn selections_are_those_of_the_attribute() {
        let mut datagram = [0; MAD_LEN];
        (datagram[DATA + 2], datagram[DATA + 3], datagram[DATA + 18]) = (0x80, 0x01, 1);
        let selected_by = |attribute| {
            let selected = selected(attribute, &datagram);
            fields(attribute).iter().filter(|field| field.is_in(selected)).map(|field| field.counter).collect()
        };
        let chosen: std::vec::Vec<Counter> = selected_by(Attribute::PortCounters);
        assert_eq!(chosen, [Counter::SymbolError, Counter::RcvPackets, Counter::XmitWait]);
        let chosen: std::vec::Vec<Counter> = selected_by(Attribute::PortCountersExtended);
        assert_eq!(chosen, [Counter::XmitData]);
    }
}
