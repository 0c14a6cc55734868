//! Attributes of the performance management class (IBA 16.1.3): layouts of counters as a table.

use super::MAD_LEN;

/// Start of an attribute in a datagram of the class (IBA 16.1.1).
pub const DATA: usize = 64;

/// Attributes of the class that are answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// `ClassPortInfo` (IBA 13.4.8.1).
    ClassPortInfo,
    /// `PortCounters` (IBA 16.1.3.5).
    PortCounters,
    /// `PortCountersExtended` (IBA 16.1.4.11).
    PortCountersExtended,
}

impl Attribute {
    /// The attribute of this id.
    #[must_use]
    pub const fn new(id: u16) -> Option<Self> {
        Some(match id {
            0x01 => Self::ClassPortInfo,
            0x12 => Self::PortCounters,
            0x1D => Self::PortCountersExtended,
            _ => return None,
        })
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
    /// Which counter.
    pub counter: Counter,
    /// First byte, from the start of the attribute.
    at: usize,
    /// Width in bits: 4 (the lower half of a byte if `shift` is 0), or whole bytes.
    bits: u32,
    /// Shift of a half byte.
    shift: u32,
    /// Bit of `CounterSelect` that names the counter; from 16 on of `CounterSelect2`.
    select: u32,
}

const fn field(counter: Counter, at: usize, bits: u32, select: u32) -> Field {
    Field { counter, at, bits, shift: 0, select }
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
    Field { counter: Counter::LocalLinkIntegrityErrors, at: 19, bits: 4, shift: 4, select: 9 },
    field(Counter::ExcessiveBufferOverrunErrors, 19, 4, 10),
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

    fn bytes(&self) -> core::ops::Range<usize> {
        let at = DATA + self.at;
        at..at + self.bits.div_ceil(8) as usize
    }

    /// Largest value.
    const fn largest(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// Reads the counter.
    #[must_use]
    pub fn get(&self, datagram: &[u8; MAD_LEN]) -> u64 {
        let bytes = datagram.get(self.bytes()).unwrap_or_default();
        let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        value >> self.shift & self.largest()
    }

    /// Writes the counter, or the largest value where it does not fit: counters stay there (IBA 16.1.3.5).
    pub fn put(&self, datagram: &mut [u8; MAD_LEN], value: u64) {
        let value = value.min(self.largest()) << self.shift;
        let kept = !(self.largest() << self.shift);
        for (byte, index) in datagram.get_mut(self.bytes()).unwrap_or_default().iter_mut().rev().zip(0_u32..) {
            let [low, ..] = (value >> (8 * index)).to_le_bytes();
            let [mask, ..] = (kept >> (8 * index)).to_le_bytes();
            *byte = *byte & mask | low;
        }
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
