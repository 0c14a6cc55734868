//! Devices: opening them, and what they say about themselves.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::handle::{Errno, Handle};
use super::{PATIENCE, is_readable};

/// The device of a world.
pub const DEVICE: &CStr = c"urxe0";

/// An open device.
pub struct Context {
    handle: Handle<v::ibv_context>,
}

// SAFETY: verbs may be called from any thread (ibv_context is shared freely in C).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The names of all devices, in libibverbs' order.
pub fn device_names() -> Result<Vec<String>, Errno> {
    let list = DeviceList::new()?;
    // SAFETY: names are strings as long as the list lives.
    let name = |device: &*mut v::ibv_device| unsafe { CStr::from_ptr(f::ibv_get_device_name(*device)) };
    Ok(list.as_slice().iter().map(|device| name(device).to_string_lossy().into_owned()).collect())
}

impl Context {
    /// Opens `urxe0`.
    pub fn open() -> Result<Arc<Self>, Errno> {
        DeviceList::new()?.open()
    }

    /// Opens the device of this name.
    pub fn open_named(name: &CStr) -> Result<Arc<Self>, Errno> {
        DeviceList::new()?.open_named(name)
    }

    /// `ibv_import_device(3)` of a duplicate of this one's file.
    pub fn import(&self) -> Result<Arc<Self>, Errno> {
        // SAFETY: a field of a live context; the duplicate is the new context's.
        let handle = unsafe {
            let duplicate = libc::dup((*self.raw()).cmd_fd);
            Handle::new(f::ibv_import_device(duplicate), f::ibv_close_device).inspect_err(|_| {
                libc::close(duplicate);
            })?
        };
        Ok(Arc::new(Self { handle }))
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_context {
        self.handle.raw()
    }

    /// Closes it now.
    pub fn close(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }

    /// `ibv_query_device(3)`.
    pub fn query_device(&self) -> Result<v::ibv_device_attr, Errno> {
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: room for the attributes, which are plain numbers.
        unsafe {
            Errno::check(f::ibv_query_device(self.raw(), attr.as_mut_ptr()))?;
            Ok(attr.assume_init())
        }
    }

    /// `ibv_query_device_ex(3)`.
    pub fn query_device_ex(&self) -> Result<v::ibv_device_attr_ex, Errno> {
        let mut attr = MaybeUninit::<v::ibv_device_attr_ex>::zeroed();
        // SAFETY: as the inline function of verbs.h does: providers of this libibverbs have extended contexts, and
        // the operation is never null in them. The attributes are plain numbers.
        unsafe {
            let query = (*self.extended()).query_device_ex.expect("libibverbs always has it");
            Errno::check(query(self.raw(), std::ptr::null(), attr.as_mut_ptr(), size_of_val(&attr)))?;
            Ok(attr.assume_init())
        }
    }

    /// `ibv_query_port(3)`.
    pub fn query_port(&self, port: u8) -> Result<v::ibv_port_attr, Errno> {
        let mut attr = MaybeUninit::<v::ibv_port_attr>::zeroed();
        // SAFETY: as for `query_device_ex`.
        unsafe {
            let query = (*self.extended()).query_port.expect("libibverbs always has it");
            Errno::check(query(self.raw(), port, attr.as_mut_ptr(), size_of_val(&attr)))?;
            Ok(attr.assume_init())
        }
    }

    /// `ibv_query_gid(3)`.
    pub fn query_gid(&self, port: u8, index: c_int) -> Result<[u8; 16], Errno> {
        let mut gid = v::ibv_gid { raw: [0; 16] };
        // SAFETY: room for a GID.
        let returned = unsafe { f::ibv_query_gid(self.raw(), port, index, &raw mut gid) };
        if returned != 0 {
            return Err(Errno::last());
        }
        // SAFETY: a GID is 16 bytes, whatever they are.
        Ok(unsafe { gid.raw })
    }

    /// `ibv_query_gid_ex(3)`.
    pub fn query_gid_ex(&self, port: u32, index: u32) -> Result<v::ibv_gid_entry, Errno> {
        let mut entry = MaybeUninit::<v::ibv_gid_entry>::zeroed();
        let size = size_of_val(&entry);
        // SAFETY: room for the entry, which is plain numbers.
        unsafe {
            Errno::check(f::_ibv_query_gid_ex(self.raw(), port, index, entry.as_mut_ptr(), 0, size))?;
            Ok(entry.assume_init())
        }
    }

    /// `ibv_query_gid_table(3)`: the entries that are not empty, up to `most`.
    pub fn query_gid_table(&self, most: usize) -> Result<Vec<v::ibv_gid_entry>, Errno> {
        let mut entries = Vec::<v::ibv_gid_entry>::with_capacity(most);
        let size = size_of::<v::ibv_gid_entry>();
        // SAFETY: room for `most` entries; as many as it says are filled in.
        unsafe {
            let count = f::_ibv_query_gid_table(self.raw(), entries.as_mut_ptr(), most, 0, size);
            let count = usize::try_from(count).map_err(|_| Errno(c_int::try_from(-count).unwrap_or(0)))?;
            entries.set_len(count);
        }
        Ok(entries)
    }

    /// `ibv_query_pkey(3)`, in the host's byte order.
    pub fn query_pkey(&self, port: u8, index: c_int) -> Result<u16, Errno> {
        let mut pkey = 0;
        // SAFETY: room for a P_Key.
        let returned = unsafe { f::ibv_query_pkey(self.raw(), port, index, &raw mut pkey) };
        if returned == 0 { Ok(u16::from_be(pkey)) } else { Err(Errno::last()) }
    }

    /// The descriptor of asynchronous events.
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: a field of a live context.
        unsafe { (*self.raw()).async_fd }
    }

    /// The next asynchronous event; `None` if there is none within `patience`.
    pub fn async_event(&self, patience: Duration) -> Result<Option<AsyncEvent>, Errno> {
        if !is_readable(self.async_fd(), patience) {
            return Ok(None);
        }
        let mut event = MaybeUninit::uninit();
        // SAFETY: room for an event, which is filled in on success.
        unsafe {
            if f::ibv_get_async_event(self.raw(), event.as_mut_ptr()) != 0 {
                return Err(Errno::last());
            }
            Ok(Some(AsyncEvent { event: event.assume_init() }))
        }
    }

    /// The next event, which must be of this kind and about `element`.
    pub fn expect_event(&self, kind: v::ibv_event_type, element: usize) -> anyhow::Result<AsyncEvent> {
        let event = self.async_event(PATIENCE)?.with_context(|| format!("no event: {}", event_name(kind)))?;
        ensure!(event.kind() == kind, "{}, not {}", event.name(), event_name(kind));
        ensure!(event.element() == element, "{} of something else", event.name());
        Ok(event)
    }

    /// Asserts that none comes within `patience`.
    pub fn expect_no_event(&self, patience: Duration) -> anyhow::Result<()> {
        let event = self.async_event(patience)?;
        ensure!(event.is_none(), "unexpected: {}", event.map_or(String::new(), |event| event.name()));
        Ok(())
    }

    /// `verbs_get_ctx` of verbs.h.
    pub fn extended(&self) -> *mut v::verbs_context {
        let context = self.raw();
        context.wrapping_byte_sub(std::mem::offset_of!(v::verbs_context, context)).cast()
    }
}

/// An asynchronous event; dropping it acknowledges it.
pub struct AsyncEvent {
    event: v::ibv_async_event,
}

impl AsyncEvent {
    /// Type of the event.
    pub fn kind(&self) -> v::ibv_event_type {
        self.event.event_type
    }

    /// The event's name, for messages.
    pub fn name(&self) -> String {
        event_name(self.kind())
    }

    /// The address of the object it is about.
    pub fn element(&self) -> usize {
        // SAFETY: the events of these tests are about QPs and CQs, whose addresses are at the same place.
        unsafe { self.event.element.qp as usize }
    }

    /// Does not acknowledge it.
    pub fn keep_unacknowledged(self) -> Unacknowledged {
        let event = self.event;
        std::mem::forget(self);
        Unacknowledged(event)
    }
}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: an event that was got and not acknowledged.
        unsafe { f::ibv_ack_async_event(&raw mut self.event) };
    }
}

/// An event that somebody still has to acknowledge.
pub struct Unacknowledged(v::ibv_async_event);

// SAFETY: an event is acknowledged from any thread.
unsafe impl Send for Unacknowledged {}

impl Unacknowledged {
    /// Acknowledges it.
    pub fn acknowledge(self) {
        drop(AsyncEvent { event: self.0 });
    }
}

/// `ibv_event_type_str(3)`.
pub fn event_name(kind: v::ibv_event_type) -> String {
    // SAFETY: any number gives a static string.
    unsafe { CStr::from_ptr(f::ibv_event_type_str(kind)) }.to_string_lossy().into_owned()
}

/// List returned by `ibv_get_device_list`.
pub struct DeviceList {
    raw: *mut *mut v::ibv_device,
    len: usize,
}

// SAFETY: nothing in the list changes until it is freed.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// `ibv_get_device_list(3)`.
    pub fn new() -> Result<Self, Errno> {
        let mut len = 0;
        // SAFETY: room for a number.
        let raw = unsafe { f::ibv_get_device_list(&raw mut len) };
        if raw.is_null() { Err(Errno::last()) } else { Ok(Self { raw, len: usize::try_from(len).unwrap_or(0) }) }
    }

    /// Opens `urxe0`.
    pub fn open(&self) -> Result<Arc<Context>, Errno> {
        self.open_named(DEVICE)
    }

    /// Opens the device of this name.
    pub fn open_named(&self, name: &CStr) -> Result<Arc<Context>, Errno> {
        for &device in self.as_slice() {
            // SAFETY: a device of the list, which lives meanwhile; libibverbs keeps a reference for the context.
            unsafe {
                if CStr::from_ptr(f::ibv_get_device_name(device)) == name {
                    let handle = Handle::new(f::ibv_open_device(device), f::ibv_close_device)?;
                    return Ok(Arc::new(Context { handle }));
                }
            }
        }
        Err(Errno(libc::ENODEV))
    }

    fn as_slice(&self) -> &[*mut v::ibv_device] {
        // SAFETY: the list has that many entries.
        unsafe { std::slice::from_raw_parts(self.raw, self.len) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: a list from `ibv_get_device_list`.
        unsafe { f::ibv_free_device_list(self.raw) };
    }
}
