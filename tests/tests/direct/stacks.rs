//! Memory on the stack of a thread that runs on it meanwhile, and of mappings that grow as stacks do.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use anyhow::{Result, ensure};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, Pages, pattern};
use urxe_tests::verbs::{Mr, Op, Options, Pair};
use urxe_tests::wait_until;

use super::memory::is_direct;
use super::{in_direct_world, succeeds};

/// Bytes of a thread's buffer on its stack.
const BUFFER: usize = 4 * PAGE;
/// Bytes of its whole pages, wherever it begins.
const WHOLE: usize = 3 * PAGE;
/// Bytes below these pages that are registered with them: frames of the functions that the thread calls lie there.
const FRAMES: usize = 4 * PAGE;
/// Calls within each other. Their frames fill more than [`FRAMES`].
const DEPTH: u64 = 64;
/// Words that each of them keeps on the stack.
const WORDS: usize = 64;

/// Calls itself `depth` times. Returns how many words on the stack were what they had been when the calls below
/// returned.
#[inline(never)]
fn descend(depth: u64) -> usize {
    let words = [depth; WORDS];
    let words = black_box(&words);
    let below = if depth == 0 { 0 } else { descend(depth - 1) };
    below + black_box(words).iter().filter(|word| **word == depth).count()
}

/// First of the whole pages of a buffer.
const fn first_page(buffer: u64) -> u64 {
    buffer.next_multiple_of(PAGE as u64)
}

/// Registers the whole pages of a thread's buffer and the frames below, and writes to the pages. `goes_on` waits for
/// the thread.
fn write_beside_frames(pair: &Pair, local: &Mr, buffer: u64, goes_on: impl Fn() -> Result<()>) -> Result<()> {
    let start = first_page(buffer) - FRAMES as u64;
    let memory = Mr::of_address(&pair.far.pd, start, FRAMES + WHOLE, ALL_ACCESS)?;
    goes_on()?;
    // Without packets where threads' stacks can be shared, and else by packets: all of them either way.
    let direct = is_direct(pair, &memory)?;
    local.pages().write(0, &pattern(1, WHOLE));
    succeeds(&pair.near, Op::Write(memory.at(FRAMES)), &[local.sge(0, WHOLE)])?;
    local.pages().write(0, &[0; WHOLE]);
    succeeds(&pair.near, Op::Read(memory.at(FRAMES)), &[local.sge(0, WHOLE)])?;
    ensure!(local.pages().read(0, WHOLE) == pattern(1, WHOLE), "direct: {direct}");
    goes_on()?;
    memory.dereg()?;
    goes_on()
}

/// A thread's stack is registered, written to and taken back while the thread calls functions on it: the thread finds
/// its frames as it left them, and what was written.
#[test]
fn a_thread_that_runs_on_registered_memory() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let local = pair.near.region(WHOLE)?;
        let (rounds, ends) = (&AtomicU64::new(0), &AtomicBool::new(false));
        std::thread::scope(|scope| -> Result<()> {
            let (tells, told) = mpsc::channel();
            // It makes no system call that writes to its stack: such a call may fail while pages are copied.
            let runner = scope.spawn(move || -> Result<Vec<u8>> {
                let mut buffer = [0_u8; BUFFER];
                tells.send(buffer.as_mut_ptr() as u64)?;
                while !ends.load(Ordering::SeqCst) {
                    let intact = descend(DEPTH);
                    ensure!(intact == (usize::try_from(DEPTH)? + 1) * WORDS, "{intact} words are intact");
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                Ok(black_box(&buffer).to_vec())
            });
            let buffer = told.recv();
            let goes_on = || {
                let before = rounds.load(Ordering::SeqCst);
                // The round of now, and a whole one.
                let has_gone_on = || rounds.load(Ordering::SeqCst) > before + 1 || runner.is_finished();
                wait_until("the thread goes on", || Ok(has_gone_on()))
            };
            let written = buffer.map_err(anyhow::Error::from).and_then(|buffer| {
                write_beside_frames(&pair, &local, buffer, goes_on)?;
                Ok(usize::try_from(first_page(buffer) - buffer)?)
            });
            ends.store(true, Ordering::SeqCst);
            let left = runner.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
            let offset = written?;
            ensure!(left[offset..offset + WHOLE] == pattern(1, WHOLE), "not what was written");
            Ok(())
        })
    });
}

/// Bytes below a mapping into which it may grow: more than the kernel keeps free below each.
const ROOM: usize = 4 << 20;

/// A mapping that grows when memory below it is touched (`MAP_GROWSDOWN`) is reached by packets while it is registered, from its first page
/// on, and grows meanwhile and afterwards.
#[test]
fn a_mapping_that_grows() {
    in_direct_world(|| {
        let pair = Pair::new(&Options::default())?;
        let local = pair.near.region(BUFFER)?;
        ensure!(is_direct(&pair, &pair.far.region(PAGE)?)?);
        // Addresses that are nobody else's.
        let room = Pages::new(ROOM);
        room.unmap();
        let start = usize::try_from(room.addr())? + ROOM - BUFFER;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN | libc::MAP_FIXED_NOREPLACE,
        );
        let wanted = std::ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: where nothing is mapped.
        let mapped = unsafe { libc::mmap(wanted.cast(), BUFFER, protection, flags, -1, 0) };
        ensure!(mapped == wanted.cast(), "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: a page below the mapping, which grows so far; the device does not know of it.
        let grows_by = |pages: usize| unsafe { wanted.sub(pages * PAGE).write_volatile(7) };
        let memory = Mr::of_address(&pair.far.pd, start as u64, BUFFER, ALL_ACCESS)?;
        ensure!(!is_direct(&pair, &memory)?, "pages are shared that would not grow");
        grows_by(1);
        local.pages().write(0, &pattern(1, BUFFER));
        succeeds(&pair.near, Op::Write(memory.at(0)), &[local.sge(0, BUFFER)])?;
        // SAFETY: the mapping of above.
        let bytes = || unsafe { std::slice::from_raw_parts(wanted, BUFFER) }.to_vec();
        ensure!(bytes() == pattern(1, BUFFER));
        memory.dereg()?;
        grows_by(8);
        ensure!(bytes() == pattern(1, BUFFER));
        // SAFETY: the mapping, with the pages by which it has grown.
        ensure!(unsafe { libc::munmap(wanted.sub(8 * PAGE).cast(), 8 * PAGE + BUFFER) } == 0);
        Ok(())
    });
}
