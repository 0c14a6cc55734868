//! Routes from a port to its peers, and multicast groups.

use std::net::SocketAddr;
use std::sync::Arc;

use urxe_wire::Gid;

use super::Port;
use crate::error::{PortError, RouteError};
use crate::multicast::Membership;
use crate::mutex::lock;
use crate::route::{Destination, Route};

impl Port {
    /// A way to `to`, for as many packets as one likes. Looks for a socket to share or opens one.
    ///
    /// # Errors
    /// When the GIDs do not fit this port or each other, or the system refuses the first socket of an address.
    pub fn route(&self, to: &Destination) -> Result<Arc<Route>, RouteError> {
        self.make_route(to, |_| false)
    }

    /// The way to `to` that `route` is, with up to `paths` source ports that [`Route::on_path`] chooses from. What loses nothing is one path.
    #[must_use]
    pub fn spread(&self, route: Arc<Route>, to: &Destination, paths: u8) -> Arc<Route> {
        let Ok((local, remote)) = self.resolve_pair(&to.local, &to.remote) else { return route };
        if paths < 2 || !route.may_lose() {
            return route;
        }
        let mut routes = lock(&self.routes);
        let mut make = |path| routes.route(&self.fds, &self.counters, [local, remote], to, false, path);
        let others = (1..paths).filter_map(|path| make(path).ok()).map(Arc::new).collect();
        make(0).map_or(route, |first| Arc::new(first.with_others(others)))
    }

    /// A way to `to` as [`route`](Self::route) finds it. Packets for a queue pair of this port stay in the process, if the port shares
    /// memory and its packets need no ICRC: whoever sends them takes them out of the batch
    /// ([`TxBatch::take_inside`](crate::TxBatch::take_inside)).
    ///
    /// # Errors
    /// Errors of [`route`](Self::route).
    pub fn route_inside(&self, to: &Destination) -> Result<Arc<Route>, RouteError> {
        let may_stay = self.shares_memory && !self.keeps_icrcs() && self.owns_qpn(to.dest_qpn);
        self.make_route(to, |remote| may_stay && self.interface().addresses().contains(&remote))
    }

    /// A way to `to`, on which packets stay in the process if `stays` says so of the peer's address.
    fn make_route(&self, to: &Destination, stays: impl Fn(SocketAddr) -> bool) -> Result<Arc<Route>, RouteError> {
        let (local, remote) = self.resolve_pair(&to.local, &to.remote)?;
        let inside = stays(remote);
        let mut routes = lock(&self.routes);
        let route = routes.route(&self.fds, &self.counters, [local, remote], to, inside, 0);
        route.map(Arc::new).map_err(|e| RouteError::Os(PortError::os("open a UDP socket to send from", e)))
    }

    /// Joins a multicast group: until the result is dropped, [`Receiver::receive`](crate::Receiver::receive) delivers what is sent to it, whose
    /// [`Headers::local`](crate::Headers::local) is the group. An IPv4 group's GID is its mapped address.
    ///
    /// # Errors
    /// [`RouteError::RemoteGidUnusable`] if the GID is no multicast address; otherwise what the system refuses, such as
    /// an IPv6 group on an interface that has no route to any.
    pub fn join_multicast(&self, group: &Gid) -> Result<Arc<Membership>, RouteError> {
        let group = self.interface().resolve(group).filter(|group| group.ip().is_multicast());
        let group = group.ok_or(RouteError::RemoteGidUnusable)?;
        let joined = self.groups.join(&self.fds, group, self.index);
        joined.map_err(|e| RouteError::Os(PortError::os("join a multicast group", e)))
    }

    /// The addresses of a source and a destination GID. A default GID that is not assigned stands for any address of
    /// the interface, so it takes the IP version of the other.
    fn resolve_pair(&self, local: &Gid, remote: &Gid) -> Result<(SocketAddr, SocketAddr), RouteError> {
        let interface = self.interface();
        if !interface.has_gid(local) {
            return Err(RouteError::LocalGidUnknown);
        }
        let from = interface.resolve(local).ok_or(RouteError::LocalGidUnknown)?;
        let to = interface.resolve_peer(remote, from).ok_or(RouteError::RemoteGidUnusable)?;
        if from.is_ipv4() == to.is_ipv4() {
            return Ok((from, to));
        }
        let like = |other: SocketAddr| interface.addresses().iter().copied().find(|a| a.is_ipv4() == other.is_ipv4());
        let pair = if interface.is_placeholder(local) {
            like(to).map(|from| (from, to))
        } else if interface.is_placeholder(remote) {
            like(from).map(|to| (from, to))
        } else {
            None
        };
        pair.ok_or(RouteError::FamilyMismatch)
    }
}
