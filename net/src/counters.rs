//! Counters of a port: packets delivered and sent, and packets dropped, by reason.

use core::sync::atomic::{AtomicU64, Ordering};

/// A structure of counters, which all only grow, and their names.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $Counters:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub struct $Counters {
            $($(#[$doc])* pub $name: ::core::sync::atomic::AtomicU64,)*
        }

        impl $Counters {
            /// Names of the counters, in the order of declaration.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// Every counter with its name, in the order of declaration.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.load(::core::sync::atomic::Ordering::Relaxed)),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Counters of one port, since it was opened. Each is read on its own (no snapshot across them).
    pub struct Counters {
        /// RoCE packets delivered to this process.
        rx_packets,
        /// Bytes of these packets, BTH to ICRC.
        rx_bytes,
        /// UDP datagrams received from the kernel (a GRO run counts once), forwarded ones among them.
        rx_datagrams,
        /// Packets too short for a BTH and an ICRC.
        drop_short,
        /// Packets for a QPN whose block no process of this host owns.
        drop_unknown_qpn,
        /// Datagrams not forwarded because the mailbox of the other process was full.
        drop_forward_full,
        /// Datagrams not forwarded because the system refused (no descriptor, no memory).
        drop_forward_refused,
        /// Datagrams in our mailbox that no urxe process would have sent, or that are for an address or QPN not ours.
        drop_mailbox_bad,
        /// Datagrams passed on to another process's mailbox.
        forwarded_out,
        /// Datagrams that came through our mailbox.
        forwarded_in,
        /// Connection requests that nobody on this host listened for when they came: kept for a moment, or copies of one that is
        /// kept or was delivered.
        early_requests,
        /// Flow sockets opened.
        flows_opened,
        /// Flow sockets closed: idle when room was needed, or their sender talks to another process now.
        flows_closed,
        /// Times this process became the owner of an address after somebody else.
        takeovers,
        /// RoCE packets offered to the kernel, those it refused included.
        tx_packets,
        /// Bytes of these packets, BTH to ICRC.
        tx_bytes,
        /// Messages (GSO runs) they were handed over in.
        tx_runs,
        /// Packets lost because the kernel had no buffer (EAGAIN after waiting, ENOBUFS, ENOMEM), or a UC queue pair of this process
        /// no room.
        tx_no_buffer,
        /// Packets refused by a local policy (EPERM, EACCES: firewall).
        tx_not_permitted,
        /// Packets without a way to their destination (ENETUNREACH, EHOSTUNREACH, ENETDOWN, EADDRNOTAVAIL…).
        tx_unreachable,
        /// Packets longer than the path's MTU (EMSGSIZE).
        tx_too_long,
        /// Packets refused for any other reason.
        tx_other,
        /// Runs that went through shared memory.
        tx_ring_runs,
        /// Runs that one queue pair of this process handed to another. Their packets and bytes count as sent and as received.
        inside_runs,
        /// Rings made to send through.
        rings_opened,
        /// Runs that came through shared memory.
        rx_ring_runs,
        /// Rings of other processes taken.
        rings_accepted,
        /// Rings of other processes that ended, their last run taken.
        rings_closed,
        /// ACKs that other processes had left in their rings when they ended.
        rx_left_acks,
        /// Rings of other processes not taken: too many, not for us, not as they should be.
        rings_refused,
        /// Rings given up because of what was in them.
        drop_ring_bad,
        /// Datagrams to a port of InfiniBand from an address that no LID leads to: another host has that LID, or the address is of
        /// another network.
        lid_conflicts,
        /// Runs that went out packet by packet because the kernel or the interface refused segmentation.
        tx_gso_refused,
        /// Locks that a thread of this process found taken, those of its other devices among them.
        contended_locks,
    }
}

/// Adds to a counter that only the holder of the receiver writes: half the price of [`add`].
pub(crate) fn add_alone(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
