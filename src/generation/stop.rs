//! Stop strings, found in text that arrives in pieces.

/// Lets text through up to the first stop string. What could still become one waits inside.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<Matcher>,
    held: String,
}

impl StopFilter {
    /// A filter for these strings, none of which is empty.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().map(|stop| Matcher::new(stop)).collect(), held: String::new() }
    }

    /// Takes text, appends to `released` what is decided, and says whether a stop string was found:
    /// then everything before it is in `released`, and nothing more will come. Of several in the
    /// same text, the one that begins first counts.
    pub fn push(&mut self, text: &str, released: &mut String) -> bool {
        self.held.push_str(text);
        let arrived = self.held.len() - text.len();
        let found =
            self.stops.iter_mut().filter_map(|stop| stop.feed(text.as_bytes(), arrived)).min();
        let kept = match found {
            Some(_) => 0,
            None => self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0),
        };
        let out = found.unwrap_or(self.held.len() - kept);
        released.push_str(&self.held[..out]);
        self.held.drain(..out);
        if found.is_some() {
            self.held.clear();
        }
        found.is_some()
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What was held back, at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt): the time
/// for a text doesn't depend on what the stop string looks like.
#[derive(Debug)]
struct Matcher {
    stop: Box<[u8]>,
    /// For each length of a beginning of `stop`: the longest shorter beginning that it ends with.
    borders: Box<[u32]>,
    matched: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let mut matcher = Self { stop: stop.as_bytes().into(), borders: Box::new([]), matched: 0 };
        let mut borders = vec![0; stop.len() + 1];
        let mut border = 0;
        for length in 2..=stop.len() {
            let byte = matcher.stop[length - 1];
            while border > 0 && matcher.stop[border] != byte {
                border = borders[border] as usize;
            }
            if matcher.stop[border] == byte {
                border += 1;
            }
            borders[length] = border as u32;
        }
        matcher.borders = borders.into();
        matcher
    }

    /// Takes more text, which begins at offset `at`, and returns the offset where the string begins
    /// if it is complete now.
    fn feed(&mut self, text: &[u8], at: usize) -> Option<usize> {
        for (offset, byte) in text.iter().enumerate() {
            while self.matched > 0 && self.stop[self.matched] != *byte {
                self.matched = self.borders[self.matched] as usize;
            }
            if self.stop[self.matched] == *byte {
                self.matched += 1;
            }
            if self.matched == self.stop.len() {
                return Some(at + offset + 1 - self.stop.len());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out when the text arrives in these pieces: before the end, at the end, stopped.
    fn run<'a>(
        stops: &[&str],
        pieces: impl IntoIterator<Item = &'a str>,
    ) -> (String, String, bool) {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>();
        let mut filter = StopFilter::new(&stops);
        let mut released = String::new();
        for piece in pieces {
            if filter.push(piece, &mut released) {
                return (released, filter.finish(), true);
            }
        }
        (released, filter.finish(), false)
    }

    fn outcome(before: &str, after: &str, stopped: bool) -> (String, String, bool) {
        (before.into(), after.into(), stopped)
    }

    #[test]
    fn text_without_stops_passes() {
        assert_eq!(run(&[], ["a", "", "b"]), outcome("ab", "", false));
        assert_eq!(run(&["x"], ["a", "b"]), outcome("ab", "", false));
    }

    #[test]
    fn stops_are_found_across_borders() {
        assert_eq!(run(&["END"], ["abE", "N", "Dcd"]), outcome("ab", "", true));
        assert_eq!(run(&["END"], ["abENDcd"]), outcome("ab", "", true));
        assert_eq!(run(&["END"], ["E", "E", "N", "E", "N", "D"]), outcome("EEN", "", true));
        assert_eq!(run(&["é漢"], ["aé", "漢b"]), outcome("a", "", true));
        assert_eq!(run(&["a"], ["a"]), outcome("", "", true));
    }

    #[test]
    fn only_a_possible_beginning_waits() {
        assert_eq!(run(&["END"], ["abEN"]), outcome("ab", "EN", false));
        assert_eq!(run(&["END"], ["abEN", "x"]), outcome("abENx", "", false));
        assert_eq!(run(&["aab"], ["aaa"]), outcome("a", "aa", false));
        assert_eq!(run(&["xyz", "END"], ["x", "yE"]), outcome("xy", "E", false));
    }

    #[test]
    fn the_first_to_begin_counts() {
        assert_eq!(run(&["c", "bcd"], ["abcd"]), outcome("a", "", true));
        assert_eq!(run(&["b", "ab"], ["xxab"]), outcome("xx", "", true));
        assert_eq!(run(&["\n\n", "\n"], ["a\n", "\n"]), outcome("a", "", true));
    }

    #[test]
    fn agrees_with_a_plain_search_whatever_the_pieces() {
        let text = "abacabadabacabaeabacabadabacaba";
        for stop in ["abae", "aba", "cabad", "eab", "xyz", "abadabacabae", "caba"] {
            for step in 1..=text.len() {
                let pieces =
                    text.as_bytes().chunks(step).map(|chunk| std::str::from_utf8(chunk).unwrap());
                let (before, after, stopped) = run(&[stop], pieces);
                match text.find(stop) {
                    Some(at) => {
                        assert_eq!((before.as_str(), stopped), (&text[..at], true), "{stop} {step}")
                    }
                    None => assert_eq!((before + &after, stopped), (text.to_owned(), false)),
                }
            }
        }
    }

    #[test]
    fn a_stop_longer_than_the_text_holds_back_no_more_than_it_must() {
        let stop = "a".repeat(1_000_000) + "b";
        let mut filter = StopFilter::new(&[stop]);
        let mut released = String::new();
        for _ in 0..50_000 {
            assert!(!filter.push("aaaaac", &mut released));
            assert!(!filter.push("aaaa", &mut released));
        }
        // Only the last four letters may still become the stop string.
        assert_eq!(released.len(), 50_000 * 10 - 4);
    }
}
