//! Encrypts and authenticates a copy in chunks, so that neither writing nor reading needs memory for the whole copy.
//!
//! The keys are derived from the API key by HKDF-SHA256. Each file has its own random salt and so its own AES-256-GCM key. The
//! nonce of a chunk is its number, and whether it is the last one. So chunks cannot be removed, repeated, reordered or taken from
//! another file. The header of the file is additional data of each chunk.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
};
use std::{
    fmt,
    io::{self, Read, Write},
};

/// The length of the id of a key.
pub const ID_LEN: usize = 16;

/// The length of the salt of a file.
pub const SALT_LEN: usize = 32;

/// The length of the plain text of each chunk except the last one.
const CHUNK_LEN: usize = 64 * 1024;

/// The length of the authentication tag of a chunk.
const TAG_LEN: usize = 16;

/// Domain separation of the keys that are derived from an API key.
const PURPOSE: &[u8] = b"countersign view copy v1";

/// The keys of the copy of one API key.
#[derive(Clone)]
pub struct CopyKey {
    derived: Prk,
    id: [u8; ID_LEN],
}

/// Derived bytes that are not a key of a cipher.
struct IdLen;

impl KeyType for IdLen {
    fn len(&self) -> usize {
        ID_LEN
    }
}

impl CopyKey {
    /// Derives the keys from an API key.
    pub fn derive(api_key: &[u8]) -> Result<Self, Unspecified> {
        let derived = Salt::new(HKDF_SHA256, PURPOSE).extract(api_key);
        let mut id = [0; ID_LEN];
        derived.expand(&[b"file name"], IdLen)?.fill(&mut id)?;
        Ok(Self { derived, id })
    }

    /// A hash of the API key that names the file. It does not disclose the API key.
    pub const fn id(&self) -> [u8; ID_LEN] {
        self.id
    }

    fn of_file(&self, salt: &[u8; SALT_LEN]) -> Result<LessSafeKey, Unspecified> {
        let info: [&[u8]; 2] = [b"seal", salt];
        let key = self.derived.expand(&info, &AES_256_GCM)?;
        Ok(LessSafeKey::new(UnboundKey::from(key)))
    }
}

impl fmt::Debug for CopyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyKey")
    }
}

/// The cipher of one file, at its next chunk.
struct Chunks {
    key: LessSafeKey,
    header: Vec<u8>,
    next: u64,
}

impl Chunks {
    fn new(key: &CopyKey, salt: &[u8; SALT_LEN], header: &[u8]) -> io::Result<Self> {
        Ok(Self { key: key.of_file(salt).map_err(io::Error::other)?, header: header.to_vec(), next: 0 })
    }

    fn nonce(&mut self, is_last: bool) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.next.to_be_bytes());
        nonce[NONCE_LEN - 1] = is_last.into();
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, chunk: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        let nonce = self.nonce(is_last);
        self.key.seal_in_place_append_tag(nonce, Aad::from(&self.header), chunk).map_err(io::Error::other)
    }

    fn open(&mut self, chunk: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        let nonce = self.nonce(is_last);
        let opened = self.key.open_in_place(nonce, Aad::from(&self.header), chunk);
        let len = opened.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?.len();
        chunk.truncate(len);
        Ok(())
    }
}

/// Seals what is written to it.
pub struct SealingWriter<W> {
    inner: W,
    chunks: Chunks,
    chunk: Vec<u8>,
    written: u64,
    max_len: u64,
}

impl<W: Write> SealingWriter<W> {
    /// Seals to `inner`, at most `max_len` bytes.
    pub fn new(inner: W, (key, salt): (&CopyKey, &[u8; SALT_LEN]), header: &[u8], max_len: u64) -> io::Result<Self> {
        let chunk = Vec::with_capacity(CHUNK_LEN + TAG_LEN);
        Ok(Self { inner, chunks: Chunks::new(key, salt, header)?, chunk, written: 0, max_len })
    }

    /// Seals the last chunk. Returns the writer, and the number of sealed bytes.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.seal_chunk(true)?;
        Ok((self.inner, self.written))
    }

    fn seal_chunk(&mut self, is_last: bool) -> io::Result<()> {
        self.chunks.seal(&mut self.chunk, is_last)?;
        self.written += self.chunk.len() as u64;
        if self.written > self.max_len {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the copy of the view would be too large"));
        }
        self.inner.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() == CHUNK_LEN && !bytes.is_empty() {
            self.seal_chunk(false)?;
        }
        let len = bytes.len().min(CHUNK_LEN - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what a [`SealingWriter`] has sealed. A chunk that is not authentic causes an error of the kind `InvalidData`.
pub struct OpeningReader<R> {
    inner: R,
    chunks: Chunks,
    chunk: Vec<u8>,
    position: usize,
    /// The sealed bytes that are not read yet; `None` after the last chunk.
    remaining: Option<u64>,
}

impl<R: Read> OpeningReader<R> {
    /// Opens `sealed_len` bytes of `inner`.
    pub fn new(inner: R, (key, salt): (&CopyKey, &[u8; SALT_LEN]), header: &[u8], sealed_len: u64) -> io::Result<Self> {
        let chunks = Chunks::new(key, salt, header)?;
        Ok(Self { inner, chunks, chunk: Vec::new(), position: 0, remaining: Some(sealed_len) })
    }

    fn open_chunk(&mut self, remaining: u64) -> io::Result<()> {
        let full = (CHUNK_LEN + TAG_LEN) as u64;
        let (len, is_last) = if remaining > full { (full, false) } else { (remaining, true) };
        self.chunk.clear();
        self.position = 0;
        (&mut self.inner).take(len).read_to_end(&mut self.chunk)?;
        self.chunks.open(&mut self.chunk, is_last)?;
        self.remaining = (!is_last).then_some(remaining - len);
        Ok(())
    }
}

impl<R: Read> Read for OpeningReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position == self.chunk.len()
            && let Some(remaining) = self.remaining
        {
            self.open_chunk(remaining)?;
        }
        let rest = &self.chunk[self.position..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.position += len;
        Ok(len)
    }
}
