//! Writes log lines to standard error on a thread of its own.
//!
//! If standard error is a pipe that nobody reads, a write to it does not return. So all other threads only add their lines to a
//! buffer of a fixed size, and never wait for the reader. While the buffer is full, new lines are dropped and counted. The
//! size is in bytes, because a client determines the length of some lines, for example with the path of its request.

use std::{
    io::{self, ErrorKind, Write},
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Maximum number of bytes that wait in the buffer. The lines that are being written have at most the same size.
const MAX_WAITING: usize = 4 * 1024 * 1024;

/// Additional bytes for the line that says why the process ends.
const RESERVED_FOR_LAST_LINE: usize = 64 * 1024;

/// How long the end of the process waits until all lines are written.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a write. Lines that are added during it are written together: waking the thread for each takes longer than
/// writing a line.
const BATCH_PAUSE: Duration = Duration::from_millis(1);

/// The size in bytes to which a buffer that has grown larger shrinks after a write.
const MAX_KEPT_CAPACITY: usize = 256 * 1024;

/// The pause before another write to a full stream, if the parent process made it non-blocking.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

static STANDARD_ERROR: OnceLock<Arc<LineBuffer>> = OnceLock::new();

/// Starts the thread that writes to standard error. A second call in the same process has no effect.
pub(crate) fn start() -> io::Result<()> {
    let buffer = Arc::new(LineBuffer::default());
    if STANDARD_ERROR.set(Arc::clone(&buffer)).is_ok() {
        thread::Builder::new().name("log".to_owned()).spawn(move || buffer.write_all_to(&mut io::stderr()))?;
    }
    Ok(())
}

/// Adds the line that says why the process ends. Returns false if the thread was not started.
pub(crate) fn push_last_line(line: &str) -> bool {
    STANDARD_ERROR.get().map(|buffer| buffer.push(line.as_bytes(), MAX_WAITING + RESERVED_FOR_LAST_LINE)).is_some()
}

/// Waits until all lines are written, or until the timeout.
pub(crate) fn flush(timeout: Duration) {
    if let Some(buffer) = STANDARD_ERROR.get() {
        buffer.flush(timeout);
    }
}

/// Number of lines that were not written.
pub(crate) fn dropped() -> u64 {
    STANDARD_ERROR.get().map_or(0, |buffer| buffer.dropped.load(Ordering::Relaxed))
}

/// On drop, waits until all lines are written, or until [`EXIT_TIMEOUT`] if nobody reads them. `main` of a server keeps it to the end, so
/// that the last lines appear even if `main` panics.
#[derive(Debug, Default)]
pub struct FlushAtExit;

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        flush(EXIT_TIMEOUT);
    }
}

/// Adds each write to the buffer, as whole lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(buffer) = STANDARD_ERROR.get() {
            buffer.push(line, MAX_WAITING);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct LineBuffer {
    waiting: Mutex<Waiting>,
    /// Notified when lines are added.
    added: Condvar,
    /// Notified when lines were written.
    written: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Whether the writing thread waits for a line, so the next one must wake it.
    is_idle: bool,
    is_writing: bool,
}

impl LineBuffer {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, lines: &[u8], max_waiting: usize) {
        let mut waiting = self.lock();
        if waiting.lines.len() + lines.len() > max_waiting {
            self.count_dropped(lines);
            return;
        }
        waiting.lines.extend_from_slice(lines);
        if mem::take(&mut waiting.is_idle) {
            self.added.notify_one();
        }
    }

    fn flush(&self, timeout: Duration) {
        let is_unwritten = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        drop(self.written.wait_timeout_while(self.lock(), timeout, is_unwritten));
    }

    fn write_all_to(&self, stream: &mut impl Write) {
        let mut lines = Vec::new();
        loop {
            let must_wait = |waiting: &mut Waiting| {
                waiting.is_idle = waiting.lines.is_empty();
                waiting.is_idle
            };
            let waiting = self.added.wait_while(self.lock(), must_wait);
            let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
            mem::swap(&mut waiting.lines, &mut lines);
            waiting.is_writing = true;
            drop(waiting);
            self.count_dropped(write_lines(stream, &lines));
            self.lock().is_writing = false;
            self.written.notify_all();
            lines.clear();
            lines.shrink_to(MAX_KEPT_CAPACITY);
            thread::sleep(BATCH_PAUSE);
        }
    }

    fn count_dropped(&self, lines: &[u8]) {
        let count = lines.split_inclusive(|byte| *byte == b'\n').count();
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Writes all lines. After a failure, for example of a closed pipe, returns the rest.
fn write_lines<'a>(stream: &mut impl Write, mut lines: &'a [u8]) -> &'a [u8] {
    while !lines.is_empty() {
        match stream.write(lines) {
            Ok(0) => break,
            Ok(written) => lines = lines.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(RETRY_PAUSE),
            Err(_) => break,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    fn start_with(stream: impl Write + Send + 'static) -> Arc<LineBuffer> {
        let (buffer, mut stream) = (Arc::new(LineBuffer::default()), stream);
        let writing = Arc::clone(&buffer);
        thread::spawn(move || writing.write_all_to(&mut stream));
        buffer
    }

    #[test]
    fn a_reader_that_stops_delays_no_line_and_loses_only_what_exceeds_the_buffer() {
        let (reader, writer) = io::pipe().unwrap();
        let buffer = start_with(writer);
        let line = |number: usize| format!("{number:0>999}\n");
        let pushed = 3 * MAX_WAITING / 1000;
        for number in 0..pushed {
            buffer.push(line(number).as_bytes(), MAX_WAITING);
        }
        let dropped = usize::try_from(buffer.dropped.load(Ordering::Relaxed)).unwrap();
        assert!(dropped > 0 && buffer.lock().lines.len() <= MAX_WAITING, "{dropped}");
        buffer.push(b"the last line\n", MAX_WAITING + RESERVED_FOR_LAST_LINE);
        let read = BufReader::new(reader).lines().map(Result::unwrap).take_while(|line| line != "the last line");
        let numbers: Vec<usize> = read.map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers.len() + dropped, pushed, "each line was written or counted");
        assert!(numbers.is_sorted(), "the order of the lines is kept");
    }

    #[test]
    fn lines_that_a_closed_pipe_refuses_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let buffer = start_with(writer);
        buffer.push(b"one\ntwo\n", MAX_WAITING);
        buffer.flush(Duration::MAX);
        assert_eq!(buffer.dropped.load(Ordering::Relaxed), 2);
    }
}
