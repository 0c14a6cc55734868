//! Address handles: where datagrams go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use urxe_net::qpn_registry::block_of;
use urxe_net::{Destination, Route};
use urxe_wire::Qpn;

use super::address_vector::AddressVector;
use super::context::Context;
use super::{diagnostics, lid};
use crate::kernel::Errno;
use urxe_runtime::device::Device;
use urxe_runtime::lock;

/// Refuses address vectors on an interface that is down, as the kernel does, which has nowhere to ask for the peer's MAC address. InfiniBand asks
/// nobody.
///
/// # Errors
/// ENETUNREACH.
pub(crate) fn check_link(context: &Context) -> Result<(), Errno> {
    let interface = context.interface();
    if interface.is_up() || interface.link_layer().is_infiniband() {
        return Ok(());
    }
    Err(diagnostics::link_is_down(interface.name()))
}

/// The way from a device to a queue pair of the peer, from up to `paths` source ports. On one that `stays_inside`, packets for a queue
/// pair of this process stay there.
///
/// # Errors
/// EINVAL without a GRH (see [`lid`]), or if the GIDs are not of use; EOPNOTSUPP for a row of RoCE v1; ENODATA for an empty
/// row of the GID table, as the kernel's `rdma_get_gid_attr`; else the error of the system call.
pub(crate) fn route(
    context: &Context,
    device: &Device,
    av: &AddressVector,
    dest_qpn: u32,
    stays_inside: bool,
    paths: u8,
) -> Result<Arc<Route>, Errno> {
    // On InfiniBand that works everywhere.
    let is_odd = !av.is_global && !context.interface().link_layer().is_infiniband();
    if let Some(observer) = context.observer().filter(|_| is_odd) {
        observer.no_grh();
    }
    let av = if av.is_global { *av } else { lid::with_grh(context.device().net(), av)? };
    let local = context.gid_row(av.sgid_index).map_err(|errno| diagnostics::no_gid_row(errno, av.sgid_index))?;
    if context.interface().gid_layout().is_roce_v1(av.sgid_index as usize) {
        return Err(diagnostics::roce_v1(av.sgid_index));
    }
    let to = Destination {
        local,
        remote: av.dgid,
        dest_qpn: Qpn::new(dest_qpn),
        flow_label: av.flow_label,
        tclass: av.traffic_class,
        hop_limit: av.hop_limit,
    };
    let net = device.net();
    if device.is_shard() && !net.interface().has_gid(&local) {
        // It follows the interface by itself, and may not have looked yet.
        device.look();
    }
    let route = if stays_inside { net.route_inside(&to) } else { net.route(&to) };
    let route = route.map(|route| net.spread(route, &to, paths));
    route.map_err(|error| diagnostics::no_route(&error, (av.sgid_index, local), av.dgid))
}

/// An address handle. Which UDP source port a datagram gets depends on the process it is for, so there is a route for
/// each block of queue pair numbers that was written to lately.
#[derive(Debug)]
pub(crate) struct AddressHandle {
    to: AddressVector,
    /// Receivers find no GRH.
    is_lid_routed: bool,
    routes: Mutex<Routes<Arc<Route>>>,
}

/// Routes of one address handle: peers name the queue pair that they want to be answered at, and may make up any. As many
/// as a port has sockets at most, which programs with one address handle for all processes of a host may well need.
const MOST_ROUTES: usize = 256;

/// The ways to processes of one peer, by their blocks of numbers.
#[derive(Debug)]
struct Routes<R> {
    /// Ways by blocks, with the times of their last use.
    by_block: HashMap<u16, (R, u64)>,
    /// Counts uses.
    time: u64,
}

impl<R: Clone> Routes<R> {
    fn new() -> Self {
        Self { by_block: HashMap::new(), time: 0 }
    }

    fn get(&mut self, block: u16) -> Option<R> {
        self.time += 1;
        let (route, used) = self.by_block.get_mut(&block)?;
        *used = self.time;
        Some(route.clone())
    }

    /// Another one, in place of the one that was used least recently if there are too many.
    fn add(&mut self, block: u16, route: R) {
        if self.by_block.len() >= MOST_ROUTES
            && let Some(oldest) = self.by_block.iter().min_by_key(|(_, (_, used))| *used).map(|(block, _)| *block)
        {
            self.by_block.remove(&oldest);
        }
        self.by_block.insert(block, (route, self.time));
    }
}

impl AddressHandle {
    /// Finds out whether there is a way, as the man page wants it; to which queue pair is said by each request.
    ///
    /// # Errors
    /// EINVAL for what is no way; ENETUNREACH where the interface is down.
    pub(crate) fn new(context: &Context, to: AddressVector) -> Result<Self, Errno> {
        // The label's source port is for whom the first datagram goes to.
        check_link(context)?;
        route(context, context.device(), &AddressVector { flow_label: 0, ..to }, Qpn::default().get(), false, 1)?;
        let is_lid_routed = !to.is_global && context.interface().link_layer().is_infiniband();
        Ok(Self { to, is_lid_routed, routes: Mutex::new(Routes::new()) })
    }

    /// Whether the address vector has a LID and no GRH, on InfiniBand.
    pub(crate) const fn is_lid_routed(&self) -> bool {
        self.is_lid_routed
    }

    /// The way to a queue pair.
    ///
    /// # Errors
    /// EINVAL if there is none any more.
    pub(crate) fn route(&self, context: &Context, qpn: Qpn) -> Result<Arc<Route>, Errno> {
        let mut routes = lock(&self.routes);
        let block = block_of(qpn);
        if let Some(route) = routes.get(block) {
            return Ok(route);
        }
        let route = route(context, context.device(), &self.to, qpn.get(), false, 1)?;
        routes.add(block, Arc::clone(&route));
        Ok(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_were_not_used_lately_go() {
        let mut routes = Routes::new();
        let most = u16::try_from(MOST_ROUTES).unwrap();
        let mut use_it = |block: u16| match routes.get(block) {
            Some(found) => {
                assert_eq!(found, block);
                true
            }
            None => {
                routes.add(block, block);
                assert!(routes.by_block.len() <= MOST_ROUTES);
                false
            }
        };
        assert!((0..most).all(|block| !use_it(block)));
        assert!(use_it(0));
        // Whatever a peer makes up, what is used stays.
        assert!((most..most * 8).all(|block| !use_it(block) && use_it(0)));
        assert!(!use_it(1) && use_it(most * 8 - 1));
    }
}
