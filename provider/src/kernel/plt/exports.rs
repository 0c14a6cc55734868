//! Loaded objects that define a function: copies of a library, whatever their files are called.

use std::ffi::{CStr, CString, c_int, c_void};

use libc::Elf64_Sym;

use super::{Object, word};

/// A loaded object that defines one of the functions that were looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// The loader's name of the object.
    pub path: CString,
    /// Address of the first function that it defines.
    pub function: usize,
}

/// Number of objects that have been loaded into this process so far: unchanged, there is nothing new to be found.
pub fn loads() -> u64 {
    let mut adds = 0;
    // SAFETY: the callback matches its contract, and `adds` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_counter), (&raw mut adds).cast()) };
    adds
}

/// Callback of `dl_iterate_phdr`.
unsafe extern "C" fn look_at_counter(info: *mut libc::dl_phdr_info, size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the counter of `loads`, and `info` is valid during the callback and has that size.
    unsafe {
        if size >= size_of::<libc::dl_phdr_info>() {
            *data.cast::<u64>() = (*info).dlpi_adds;
        }
    }
    1
}

/// The loaded objects that define one of these functions, in the order in which they were loaded. The program itself is
/// none: it has no name.
pub fn exporters(functions: &[&CStr]) -> Vec<Exporter> {
    let mut search = Search { functions, found: Vec::new() };
    // SAFETY: the callback matches its contract, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_symbols), (&raw mut search).cast()) };
    search.found
}

/// Paths of the loaded objects whose file's name begins like this.
pub fn files(name: &CStr) -> Vec<CString> {
    let mut search = (name, Vec::new());
    // SAFETY: the callback matches its contract, and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_name), (&raw mut search).cast()) };
    search.1
}

/// Callback of `dl_iterate_phdr`.
unsafe extern "C" fn look_at_name(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `files` looks for, and `info` is valid during the callback.
    let ((name, found), info) = unsafe { (&mut *data.cast::<(&CStr, Vec<CString>)>(), &*info) };
    if !info.dlpi_name.is_null() {
        // SAFETY: the loader's name of the object.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) };
        if file_name(path).starts_with(name.to_bytes()) {
            found.push(path.to_owned());
        }
    }
    0
}

/// The name without the folder.
pub fn file_name(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

struct Search<'a> {
    functions: &'a [&'a CStr],
    found: Vec<Exporter>,
}

/// Callback of `dl_iterate_phdr`.
unsafe extern "C" fn look_at_symbols(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `Search` of `exporters`, and `info` is valid during the callback.
    let (search, info) = unsafe { (&mut *data.cast::<Search<'_>>(), &*info) };
    if info.dlpi_phdr.is_null() || info.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the loader's name of the object.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) };
    // SAFETY: the loader's own table.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    // SAFETY: these are its headers, and this is where it is loaded.
    let object = unsafe { Object::new(word(info.dlpi_addr), headers) };
    let function = object.ok().and_then(|object| search.functions.iter().find_map(|name| object.function(name)));
    if let Some(function) = function.filter(|_| !path.is_empty()) {
        search.found.push(Exporter { path: path.to_owned(), function });
    }
    0
}

impl Object {
    /// Address of a function that this object defines, by its GNU hash table (`DT_GNU_HASH`).
    ///
    /// The table: the counts of buckets, of symbols that are not in it, of words of the Bloom filter, and the filter's
    /// shift; the filter; for each bucket its first symbol; for each symbol its hash, the lowest bit being set in the last of
    /// a bucket.
    pub(super) fn function(&self, name: &CStr) -> Option<usize> {
        if self.gnu_hash == 0 {
            return None;
        }
        let number = |address: usize| {
            // SAFETY: inside the hash table of the object, which the loader has mapped and uses itself.
            unsafe { *(address as *const u32) }
        };
        let [buckets, first, filter_words, shift] = [0, 4, 8, 12].map(|offset| number(self.gnu_hash + offset));
        if buckets == 0 || filter_words == 0 {
            return None;
        }
        let hash = gnu_hash(name);
        let filter = self.gnu_hash + 16;
        let at = |table: usize, index: u32| number(table + index as usize * size_of::<u32>());
        // SAFETY: as above: one of the filter's words.
        let present = unsafe { *(filter as *const u64).add(((hash / u64::BITS) % filter_words) as usize) };
        if present >> (hash % u64::BITS) & present >> ((hash >> shift) % u64::BITS) & 1 == 0 {
            return None;
        }
        let bucket_table = filter + filter_words as usize * size_of::<u64>();
        let chain = bucket_table + buckets as usize * size_of::<u32>();
        let start = at(bucket_table, hash % buckets);
        if start < first {
            return None;
        }
        (start..).find_map(|index| {
            let found = at(chain, index - first);
            if found | 1 == hash | 1 && self.symbol_name(u64::from(index)) == Some(name) {
                return Some(self.address_of(index));
            }
            (found & 1 == 1).then_some(None)
        })?
    }

    /// Of the symbol at `index`, if it is a function that is defined here.
    fn address_of(&self, index: u32) -> Option<usize> {
        const STT_FUNC: u8 = 2;
        // SAFETY: an index of the object's hash table.
        let symbol = unsafe { &*(self.symtab as *const Elf64_Sym).add(index as usize) };
        let defined = symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_FUNC;
        defined.then(|| self.base.wrapping_add(word(symbol.st_value)))
    }
}

/// The hash of a symbol's name.
fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}
