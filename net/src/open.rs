//! Opening of a port and its receive side.

use crate::error::PortError;
use crate::interface::Interface;
use crate::ipc::sealed_file;
use crate::port::Port;
use crate::rx::Receiver;
use crate::sys::fd::{Budgets, FdSet, descriptor_share};

impl Port {
    /// Opens the port on all addresses of `interface`, together with its receive side, of which there is one. Names and sockets
    /// are given up when both are dropped.
    ///
    /// # Errors
    /// [`PortError::PortTaken`] when a program that is not urxe holds UDP port 4791 of an address; otherwise what the
    /// system refused.
    pub fn open(interface: Interface) -> Result<(Self, Receiver), PortError> {
        Self::open_with(interface, false)
    }

    /// Opens a port that exchanges packets with processes of this host and user through shared memory, if they have opened
    /// theirs likewise, and with all others by UDP.
    ///
    /// # Errors
    /// Errors of [`Port::open`].
    pub fn open_sharing_memory(interface: Interface) -> Result<(Self, Receiver), PortError> {
        Self::open_with(interface, true)
    }

    /// Opens another port of this process at the same interface, as another process would: with queue pair numbers, sockets and rings of
    /// its own, but without a part in elections. What comes for its queue pairs to the port's owner is forwarded to it. All of so many
    /// shards may take as many descriptors as the port: whichever needs them, but for those of queue pair numbers, of which each has its part.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn open_shard(&self, of: usize) -> Result<(Self, Receiver), PortError> {
        let interface = self.interface().reread()?;
        let fds = FdSet::new().map_err(|e| PortError::os("create an epoll instance", e))?;
        let limit = descriptor_share().div_ceil(of.max(1));
        let budgets = &self.shard_budgets;
        let mut receiver = Receiver::open_shard(&fds, interface.addresses(), self.shares_memory, budgets)?;
        let shard = Self::new(&fds, interface, limit, budgets, self.shares_memory)?;
        receiver.follow(&shard);
        Ok((shard, receiver))
    }

    fn open_with(interface: Interface, shared: bool) -> Result<(Self, Receiver), PortError> {
        // Asked here, for later: the program may forbid itself to open files.
        sealed_file::are_commits_limited();
        let fds = FdSet::new().map_err(|e| PortError::os("create an epoll instance", e))?;
        let limit = descriptor_share();
        let budgets = &Budgets::of(limit);
        let mut receiver = Receiver::open(&fds, interface.addresses(), shared, budgets)?;
        let port = Self::new(&fds, interface, limit, budgets, shared)?;
        // Changes since the interface was read have been announced to nobody.
        receiver.follow(&port);
        receiver.appoint_successors(&port);
        receiver.note_owned(&port);
        Ok((port, receiver))
    }
}
