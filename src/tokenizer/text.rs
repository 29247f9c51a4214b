//! Bytes that arrive in pieces, as text.

/// Turns bytes into text as far as they are whole characters. Of what has arrived, only an
/// unfinished character stays inside, 3 bytes at most.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends to `text` what is decided by these bytes. Bytes that can't be UTF-8 become U+FFFD,
    /// as in [`String::from_utf8_lossy`].
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        let unfinished = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        break after.len();
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
            }
        };
        self.pending.drain(..self.pending.len() - unfinished);
    }

    /// Whether there is no unfinished character inside.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Appends what an unfinished character at the end becomes.
    pub fn finish(&mut self, text: &mut String) {
        text.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_steps(bytes: &[u8], step: usize) -> String {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        for chunk in bytes.chunks(step) {
            stream.push(chunk, &mut text);
        }
        stream.finish(&mut text);
        text
    }

    #[test]
    fn the_text_does_not_depend_on_the_steps() {
        let samples: [&[u8]; 8] = [
            "a🦀é漢\n".as_bytes(),
            b"",
            b"\xff\xfe\x80a",
            b"a\xf0\x9f\xa6",
            b"\xe2\x82\xe2\x82\xac",
            b"\xf0\x9f\xa6\xf0\x9f\xa6\x80",
            b"\xc3",
            b"\xed\xa0\x80x",
        ];
        for sample in samples {
            for step in 1..=5 {
                assert_eq!(
                    in_steps(sample, step),
                    String::from_utf8_lossy(sample),
                    "{sample:x?} by {step}"
                );
            }
        }
    }

    #[test]
    fn only_an_unfinished_character_waits() {
        let mut stream = Utf8Stream::default();
        let mut text = String::new();
        stream.push(b"ab\xf0\x9f", &mut text);
        assert_eq!(text, "ab");
        stream.push(b"\xa6", &mut text);
        assert_eq!(text, "ab");
        stream.push(b"\x80c", &mut text);
        assert_eq!(text, "ab🦀c");
    }
}
