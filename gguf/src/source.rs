//! Reads little-endian values from a file of known size, and never sets memory aside for more than
//! the file has left.

use std::io::{self, Read};

use crate::value::Strings;

/// What can go wrong while reading; the caller knows where.
#[derive(Debug)]
pub(crate) enum Trouble {
    Io(io::Error),
    /// The file ends first.
    Short,
    /// A string of this many bytes, which the header can't have.
    Claim(u64),
    NotUtf8,
}

/// No header is longer than this many bytes (the longest known have 40 MB), so that a damaged length
/// doesn't make gigabytes of weights pass for a string.
const LONGEST_HEADER: u64 = 1 << 29;

/// Large lists are read in pieces of this many bytes, so that a file that is shorter than its
/// metadata says (it may shrink while we read) costs one piece of memory.
const PIECE: u64 = 1 << 20;

pub(crate) struct Source<R> {
    reader: R,
    position: u64,
    size: u64,
}

impl<R: Read> Source<R> {
    pub(crate) fn new(reader: R, size: u64) -> Self {
        Self { reader, position: 0, size }
    }

    /// The file's size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that the rest of the header can have.
    pub(crate) fn remaining(&self) -> u64 {
        self.size.min(LONGEST_HEADER) - self.position
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Trouble> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Trouble> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Trouble> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// A string with its length before it.
    pub(crate) fn string(&mut self) -> Result<String, Trouble> {
        let mut text = Vec::new();
        self.append_string(&mut text)?;
        String::from_utf8(text).map_err(|_| Trouble::NotUtf8)
    }

    /// `count` strings.
    pub(crate) fn strings(&mut self, count: u64) -> Result<Strings, Trouble> {
        let mut text = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..count {
            self.append_string(&mut text)?;
            ends.push(text.len());
        }
        Strings::from_parts(text, ends).ok_or(Trouble::NotUtf8)
    }

    /// `count` values of `N` bytes each.
    pub(crate) fn list<T, const N: usize>(
        &mut self,
        count: u64,
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Trouble> {
        let mut values = Vec::new();
        let mut piece = Vec::new();
        let mut left = count;
        while left > 0 {
            let now = left.min(PIECE / N as u64);
            piece.resize(now as usize * N, 0);
            self.fill(&mut piece)?;
            let (chunks, _) = piece.as_chunks::<N>();
            values.extend(chunks.iter().map(|&bytes| convert(bytes)));
            left -= now;
        }
        Ok(values)
    }

    fn append_string(&mut self, text: &mut Vec<u8>) -> Result<(), Trouble> {
        let length = self.u64()?;
        if length > self.remaining() {
            return Err(Trouble::Claim(length));
        }
        let mut left = length;
        while left > 0 {
            let now = left.min(PIECE);
            let start = text.len();
            text.resize(start + now as usize, 0);
            self.fill(&mut text[start..])?;
            left -= now;
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Trouble> {
        if bytes.len() as u64 > self.remaining() {
            return Err(Trouble::Short);
        }
        self.reader.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Trouble::Short,
            _ => Trouble::Io(error),
        })?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}
