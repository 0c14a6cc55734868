//! All ids of the process, by handle.
//!
//! Peers ask for as many connections as are accepted, so nothing that a message costs may grow with their number: whose a
//! port is and which handle is free are known without looking at every id.

use std::collections::{HashMap, VecDeque};

use super::id::Id;
use super::membership::{Group, Joined};

/// The largest handle, and so how many there can be. Small numbers, as the kernel's are: librdmacm indexes a table of as
/// many by them.
pub(super) const LAST_HANDLE: u32 = 0xFFFF;

/// The ids, and the groups that they have joined, which have handles of the same kind.
#[derive(Default)]
pub(super) struct Ids {
    all: HashMap<u32, Id>,
    /// Handle of the id that has joined each group, by the group's handle.
    groups: HashMap<u32, u32>,
    /// Handles of the ids that have, or had, each port. An accepted connection has no port of its own.
    ports: HashMap<u16, Vec<u32>>,
    /// Largest handle ever given out.
    given: u32,
    /// Handles free again, in the order in which they were given back.
    free: VecDeque<u32>,
}

impl Ids {
    /// Whether there is a handle for one more.
    pub(super) fn has_room(&self) -> bool {
        self.given < LAST_HANDLE || !self.free.is_empty()
    }

    pub(super) fn get(&self, handle: u32) -> Option<&Id> {
        self.all.get(&handle)
    }

    pub(super) fn get_mut(&mut self, handle: u32) -> Option<&mut Id> {
        self.all.get_mut(&handle)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Id)> {
        self.all.iter().map(|(handle, id)| (*handle, id))
    }

    /// Takes an id in, if there [is room](Self::has_room). Returns its handle.
    pub(super) fn insert(&mut self, id: Id) -> Option<u32> {
        let handle = self.new_handle()?;
        self.all.insert(handle, id);
        Some(handle)
    }

    /// Lets go of an id, and of its groups.
    pub(super) fn remove(&mut self, handle: u32) -> Option<Id> {
        let id = self.all.remove(&handle)?;
        self.free.push_back(handle);
        for group in &id.groups {
            self.groups.remove(&group.handle);
            self.free.push_back(group.handle);
        }
        if let Some(port) = id.src.map(|src| src.port())
            && let Some(takers) = self.ports.get_mut(&port)
        {
            takers.retain(|taker| *taker != handle);
            if takers.is_empty() {
                self.ports.remove(&port);
            }
        }
        Some(id)
    }

    /// The id has taken the port of its address, which it keeps.
    pub(super) fn took_port(&mut self, handle: u32) {
        if let Some(port) = self.all.get(&handle).and_then(|id| id.src).map(|src| src.port()) {
            let takers = self.ports.entry(port).or_default();
            if !takers.contains(&handle) {
                takers.push(handle);
            }
        }
    }

    /// Returns the ids that have taken a port, with their handles.
    pub(super) fn at_port(&self, port: u16) -> impl Iterator<Item = (u32, &Id)> {
        let takers = self.ports.get(&port).map(Vec::as_slice).unwrap_or_default();
        takers.iter().filter_map(|handle| Some((*handle, self.get(*handle)?)))
    }

    /// The id, which is there, joins a group, with the application's name for it. Returns the group's handle.
    pub(super) fn join(&mut self, handle: u32, uid: u64) -> Option<u32> {
        let group = self.new_handle()?;
        self.get_mut(handle)?.groups.push(Group { handle: group, uid, events_reported: 0, joined: None });
        self.groups.insert(group, handle);
        Some(group)
    }

    /// The id that has joined a group, with its handle.
    pub(super) fn member(&self, group: u32) -> Option<(u32, &Id)> {
        let handle = *self.groups.get(&group)?;
        Some((handle, self.get(handle)?))
    }

    /// Notes that an id is a member of a group, or is none any more.
    pub(super) fn set_joined(&mut self, group: u32, membership: Option<Joined>) {
        let id = self.groups.get(&group).and_then(|handle| self.all.get_mut(handle));
        if let Some(joined) = id.and_then(|id| id.groups.iter_mut().find(|joined| joined.handle == group)) {
            joined.joined = membership;
        }
    }

    /// Leaves a group; with the id that had joined it.
    pub(super) fn leave(&mut self, group: u32) -> Option<(Group, &Id)> {
        let handle = self.groups.remove(&group)?;
        self.free.push_back(group);
        let id = self.all.get_mut(&handle)?;
        let at = id.groups.iter().position(|joined| joined.handle == group)?;
        let left = id.groups.swap_remove(at);
        Some((left, id))
    }

    /// A handle that nobody has, for as long as possible one that nobody had.
    fn new_handle(&mut self) -> Option<u32> {
        if self.given == LAST_HANDLE {
            return self.free.pop_front();
        }
        self.given += 1;
        Some(self.given)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use urxe_wire::Gid;

    use super::super::channel::Channel;
    use super::super::id::IBV_QPT_RC;
    use super::super::membership::Role;
    use super::super::port_space::PortSpace;
    use super::*;

    fn ids() -> (Ids, impl Fn(Option<&str>) -> Id) {
        let (channel, _) = Channel::new().unwrap();
        let channel = Arc::new(channel);
        let id = move |src: Option<&str>| {
            let mut id = Id::new(Arc::clone(&channel), 1, PortSpace::Tcp, IBV_QPT_RC);
            id.src = src.map(|src| src.parse::<SocketAddr>().unwrap());
            id
        };
        (Ids::default(), id)
    }

    #[test]
    fn connections_at_a_port_are_not_in_the_way_of_who_took_it() {
        let (mut ids, id) = ids();
        let listener = ids.insert(id(Some("192.0.2.1:5"))).unwrap();
        ids.took_port(listener);
        ids.took_port(listener);
        for _ in 0..100 {
            ids.insert(id(Some("192.0.2.1:5"))).unwrap();
        }
        let takers = |ids: &Ids| ids.at_port(5).map(|(handle, _)| handle).collect::<Vec<_>>();
        assert_eq!(takers(&ids), [listener]);
        ids.remove(listener).unwrap();
        assert!(takers(&ids).is_empty() && ids.ports.is_empty());
    }

    #[test]
    fn groups_have_handles_of_their_own_and_go_with_their_id() {
        let (mut ids, id) = ids();
        let one = ids.insert(id(None)).unwrap();
        let groups = [ids.join(one, 7).unwrap(), ids.join(one, 8).unwrap()];
        assert!(!groups.contains(&one) && groups[0] != groups[1]);
        let joined = Some(Joined { mgid: Gid::new([0xFF; 16]), role: Role::Full });
        ids.set_joined(groups[1], joined);
        let known = ids.member(groups[1]).map(|(handle, id)| (handle, id.groups[1].uid, id.groups[1].joined));
        assert_eq!(known, Some((one, 8, joined)));
        assert_eq!(ids.leave(groups[0]).map(|(group, _)| group.handle), Some(groups[0]));
        assert!(ids.leave(groups[0]).is_none() && ids.member(groups[0]).is_none());
        ids.given = LAST_HANDLE;
        assert_eq!(ids.insert(id(None)), Some(groups[0]), "the only one that nobody has");
        assert!(!ids.has_room() && ids.insert(id(None)).is_none());
        ids.remove(one).unwrap();
        assert_eq!(ids.free, [one, groups[1]]);
        assert!(ids.leave(groups[1]).is_none() && ids.groups.is_empty());
    }
}
