//! Columns of the two tables, and which of them a narrow terminal shows.

use super::cell::Cell;
use super::sample::{Device, Key, QueuePair, Samples};

/// A column.
pub(super) struct Column<T> {
    pub(super) name: &'static str,
    /// Columns of higher ranks go first where a terminal is too narrow for all.
    rank: u8,
    cell: fn(&Samples, &T) -> Cell,
    /// Counters of which growth is trouble.
    pub(super) trouble: &'static [&'static str],
    /// True for names, which are sorted from A to Z; amounts have the largest first.
    pub(super) is_name: bool,
    /// True for what stands at the right of its column.
    pub(super) is_number: bool,
}

impl<T> Column<T> {
    const fn name(name: &'static str, rank: u8, cell: fn(&Samples, &T) -> Cell) -> Self {
        Self { name, rank, cell, trouble: &[], is_name: true, is_number: false }
    }

    const fn amount(name: &'static str, rank: u8, cell: fn(&Samples, &T) -> Cell) -> Self {
        Self { name, rank, cell, trouble: &[], is_name: false, is_number: true }
    }

    const fn trouble(
        name: &'static str,
        rank: u8,
        cell: fn(&Samples, &T) -> Cell,
        trouble: &'static [&'static str],
    ) -> Self {
        Self { name, rank, cell, trouble, is_name: false, is_number: true }
    }

    pub(super) fn cell(&self, samples: &Samples, row: &T) -> Cell {
        (self.cell)(samples, row)
    }
}

/// A thing that has counters.
pub(super) trait Row {
    fn key(&self) -> &Key;
}

impl Row for Device {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Row for QueuePair {
    fn key(&self) -> &Key {
        &self.key
    }
}

pub(super) const TX_BYTES: &[&str] = &["tx_bytes"];
pub(super) const RX_BYTES: &[&str] = &["rx_bytes"];
pub(super) const TX_PACKETS: &[&str] = &["tx_packets"];
pub(super) const RX_PACKETS: &[&str] = &["rx_packets"];
/// Times that requests were sent again.
pub(super) const RETRIES: &[&str] = &["completer_retry_err"];
const TIMEOUTS: &[&str] = &["ack_timeout"];
const RNR: &[&str] = &["rcvd_rnr_err", "send_rnr_err"];
const NAKS: &[&str] = &[
    "rcvd_seq_err",
    "rcvd_nak_invalid_request",
    "rcvd_nak_remote_access",
    "rcvd_nak_remote_operational",
    "sent_nak_sequence",
    "sent_nak_invalid_request",
    "sent_nak_remote_access",
    "sent_nak_remote_operational",
];
const DROPS: &[&str] = &[
    "drop_ghost_ack",
    "mad_malformed",
    "mad_no_agent",
    "mad_no_request",
    "mad_rmpp_refused",
    "mad_queue_full",
    "mad_perf_dropped",
    "smp_no_way",
    "smp_bad_key",
    "subnet_full",
    "subnet_lies",
    "raw_rx_no_receive",
    "raw_rx_lost",
    "raw_rx_too_long",
    "raw_tx_lost",
    "icrc_err",
    "malformed",
    "unknown_qp",
    "bad_pkey",
    "bad_qkey",
    "drop_state",
    "drop_transport",
    "drop_no_receive",
    "drop_refused",
    "drop_stranger",
    "drop_stale_duplicate",
    "drop_no_answer",
    "drop_unexpected_response",
    "drop_short",
    "drop_unknown_qpn",
    "drop_forward_full",
    "drop_forward_refused",
    "drop_mailbox_bad",
    "drop_ring_bad",
    "tx_no_buffer",
    "tx_not_permitted",
    "tx_unreachable",
    "tx_too_long",
    "tx_other",
];

fn pid<T: Row>(_: &Samples, row: &T) -> Cell {
    Cell::Number(row.key().pid)
}

fn device_name<T: Row>(_: &Samples, row: &T) -> Cell {
    Cell::Text(row.key().device.clone())
}

fn tx_bytes<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::rate(samples.rate(row.key(), TX_BYTES))
}

fn rx_bytes<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::rate(samples.rate(row.key(), RX_BYTES))
}

fn tx_packets<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::rate(samples.rate(row.key(), TX_PACKETS))
}

fn rx_packets<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::rate(samples.rate(row.key(), RX_PACKETS))
}

fn retries<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::Count(samples.sum(row.key(), RETRIES))
}

fn timeouts<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::Count(samples.sum(row.key(), TIMEOUTS))
}

fn rnr<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::Count(samples.sum(row.key(), RNR))
}

fn naks<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::Count(samples.sum(row.key(), NAKS))
}

fn drops<T: Row>(samples: &Samples, row: &T) -> Cell {
    Cell::Count(samples.sum(row.key(), DROPS))
}

pub(super) static DEVICES: [Column<Device>; 13] = [
    Column::name("PID", 3, pid),
    Column::name("PROGRAM", 2, |_, device| Cell::Text(device.program.clone())),
    Column::name("DEVICE", 1, device_name),
    Column::name("NETDEV", 4, |_, device| Cell::Text(device.netdev.clone())),
    Column::amount("QPS", 5, |_, device| Cell::Count(device.qps)),
    Column::amount("MRS", 9, |_, device| Cell::Count(device.mrs)),
    Column::amount("MR BYTES", 8, |_, device| Cell::Count(device.mr_bytes)),
    Column::amount("TX B/s", 0, tx_bytes),
    Column::amount("RX B/s", 0, rx_bytes),
    Column::amount("TX pkt/s", 7, tx_packets),
    Column::amount("RX pkt/s", 7, rx_packets),
    Column::trouble("RETRIES", 2, retries, RETRIES),
    Column::trouble("DROPS", 6, drops, DROPS),
];

pub(super) static QPS: [Column<QueuePair>; 17] = [
    Column::name("PID", 4, pid),
    Column::name("PROGRAM", 5, |_, qp| Cell::Text(qp.program.clone())),
    Column::name("DEVICE", 9, device_name),
    Column::name("QP", 0, |_, qp| qp.key.qpn.map_or(Cell::Nothing, Cell::Qpn)),
    Column::name("TYPE", 8, |_, qp| Cell::Text(qp.service.clone())),
    Column::name("STATE", 1, |_, qp| Cell::Text(qp.state.clone())),
    Column::name("PEER", 4, |_, qp| Cell::Text(qp.peer.clone())),
    Column::amount("TX B/s", 0, tx_bytes),
    Column::amount("RX B/s", 0, rx_bytes),
    Column::amount("TX pkt/s", 10, tx_packets),
    Column::amount("RX pkt/s", 10, rx_packets),
    Column::amount("WINDOW", 3, |_, qp| qp.window.map_or(Cell::Nothing, Cell::Count)),
    Column::trouble("RETRIES", 2, retries, RETRIES),
    Column::trouble("TIMEOUTS", 6, timeouts, TIMEOUTS),
    Column::trouble("RNR", 7, rnr, RNR),
    Column::trouble("NAKS", 7, naks, NAKS),
    Column::trouble("DROPS", 6, drops, DROPS),
];

/// Spaces between columns.
pub(super) const SPACING: u16 = 2;

/// Chooses columns that fit: by place in the list, and width of their widest value.
pub(super) fn fit<T>(columns: &[Column<T>], widths: &[u16], room: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| {
        let cells: u32 = shown.iter().filter_map(|&index| widths.get(index)).map(|width| u32::from(*width)).sum();
        cells + u32::from(SPACING) * u32::try_from(shown.len().saturating_sub(1)).unwrap_or(u32::MAX)
    };
    while shown.len() > 1 && needed(&shown) > u32::from(room) {
        // Of equal ranks the one at the right.
        let least = shown.iter().enumerate().max_by_key(|(_, index)| (columns[**index].rank, **index));
        let Some((place, _)) = least else { break };
        shown.remove(place);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of no column: what went well, connections and flows, and what a retry or an error of another column comes from.
    const OTHERS: &[&str] = &[
        "duplicate_request",
        "out_of_seq_request",
        "np_cnp_sent",
        "np_ecn_marked_roce_packets",
        "rp_cnp_handled",
        "rp_cnp_ignored",
        "direct_requests",
        "direct_bytes",
        "direct_served",
        "direct_served_bytes",
        "sack_connections",
        "sack_kept",
        "sack_sent",
        "sack_received",
        "sack_invalid",
        "sack_lost",
        "sack_retransmitted",
        "sack_spurious",
        "paths_left",
        "paths_migrated",
        "retry_exceeded_err",
        "retry_rnr_exceeded_err",
        "link_downed",
        "rx_datagrams",
        "forwarded_out",
        "forwarded_in",
        "early_requests",
        "flows_opened",
        "flows_closed",
        "takeovers",
        "tx_runs",
        "tx_ring_runs",
        "inside_runs",
        "rings_opened",
        "rx_ring_runs",
        "rings_accepted",
        "rings_closed",
        "rx_left_acks",
        "rings_refused",
        "lid_conflicts",
        "tx_gso_refused",
        "contended_locks",
    ];

    #[test]
    fn every_counter_has_its_place() {
        let lists = [TX_BYTES, RX_BYTES, TX_PACKETS, RX_PACKETS, RETRIES, TIMEOUTS, RNR, NAKS, DROPS, OTHERS];
        for name in urxe_status::names() {
            let places = lists.iter().filter(|list| list.contains(&name)).count();
            assert_eq!(places, 1, "{name}");
        }
        let unknown: Vec<&str> =
            lists.concat().into_iter().filter(|name| !urxe_status::names().any(|known| known == *name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
