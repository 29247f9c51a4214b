//! Stop strings, found in text that arrives in pieces.

/// A stop string, made ready for finding it in one pass (Knuth, Morris and Pratt): the time for a
/// text doesn't depend on what the stop string looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopPattern {
    text: Box<[u8]>,
    /// For each length of a beginning of `text`: the longest shorter beginning that it ends with.
    borders: Box<[u32]>,
}

impl StopPattern {
    /// The pattern of a text that is not empty.
    pub fn new(text: &str) -> Self {
        let text: Box<[u8]> = text.as_bytes().into();
        let mut borders = vec![0; text.len() + 1];
        let mut border = 0;
        for length in 2..=text.len() {
            let byte = text[length - 1];
            while border > 0 && text[border] != byte {
                border = borders[border] as usize;
            }
            if text[border] == byte {
                border += 1;
            }
            borders[length] = border as u32;
        }
        Self { text, borders: borders.into() }
    }
}

/// Lets text through up to the first stop string. What could still become one waits inside.
#[derive(Debug)]
pub struct StopFilter<'a> {
    stops: Vec<Matcher<'a>>,
    held: String,
}

impl<'a> StopFilter<'a> {
    /// A filter for these strings.
    pub fn new(stops: &'a [StopPattern]) -> Self {
        let stops = stops.iter().map(|pattern| Matcher { pattern, matched: 0 }).collect();
        Self { stops, held: String::new() }
    }

    /// Takes text, appends to `released` what is decided, and says whether a stop string was found:
    /// then everything before it is in `released`, and nothing more will come. Of several in the
    /// same text, the one that begins first counts. A string that is completed while the filter
    /// isn't `armed` is text like any other.
    pub fn push(&mut self, text: &str, armed: bool, released: &mut String) -> bool {
        self.held.push_str(text);
        let arrived = self.held.len() - text.len();
        let feed = |stop: &mut Matcher<'_>| stop.feed(text.as_bytes(), arrived, armed);
        let found = self.stops.iter_mut().filter_map(feed).min();
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

/// How much of a stop string the text so far ends with.
#[derive(Debug)]
struct Matcher<'a> {
    pattern: &'a StopPattern,
    matched: usize,
}

impl Matcher<'_> {
    /// Takes more text, which begins at offset `at`, and returns the offset where the string begins
    /// if it is complete now, and `armed`.
    fn feed(&mut self, text: &[u8], at: usize, armed: bool) -> Option<usize> {
        let StopPattern { text: stop, borders } = self.pattern;
        for (offset, byte) in text.iter().enumerate() {
            while self.matched > 0 && stop[self.matched] != *byte {
                self.matched = borders[self.matched] as usize;
            }
            if stop[self.matched] == *byte {
                self.matched += 1;
            }
            if self.matched == stop.len() {
                if armed {
                    return Some(at + offset + 1 - stop.len());
                }
                self.matched = borders[self.matched] as usize;
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
        let stops = stops.iter().map(|stop| StopPattern::new(stop)).collect::<Vec<_>>();
        let mut filter = StopFilter::new(&stops);
        let mut released = String::new();
        for piece in pieces {
            if filter.push(piece, true, &mut released) {
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
        let stop = [StopPattern::new(&stop)];
        let mut filter = StopFilter::new(&stop);
        let mut released = String::new();
        for _ in 0..50_000 {
            assert!(!filter.push("aaaaac", true, &mut released));
            assert!(!filter.push("aaaa", true, &mut released));
        }
        // Only the last four letters may still become the stop string.
        assert_eq!(released.len(), 50_000 * 10 - 4);
    }

    #[test]
    fn what_is_complete_too_early_does_not_count_but_its_end_may() {
        let stops = [StopPattern::new("aa")];
        let mut filter = StopFilter::new(&stops);
        let mut released = String::new();
        assert!(!filter.push("aa", false, &mut released));
        assert_eq!(released, "a");
        // The second `a` and this one make up another.
        assert!(filter.push("ab", true, &mut released));
        assert_eq!(released, "a");
        let stops = [StopPattern::new("xy")];
        let mut filter = StopFilter::new(&stops);
        assert!(!filter.push("xyx", false, &mut released));
        assert!(filter.push("y", true, &mut released));
        assert_eq!(released, "axy");
    }
}
