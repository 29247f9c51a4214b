//! The texts that both tokenizers are given: chosen ones, and random ones made of them and of
//! alphabets that are near the borders between kinds of characters.

/// The chosen texts.
pub fn chosen() -> Vec<String> {
    include_str!("corpus.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("every line is a JSON string"))
        .collect()
}

/// The chosen texts and `count` random ones, the same at every run.
pub fn with_random(count: usize) -> Vec<String> {
    let mut texts = chosen();
    let chosen = texts.len();
    let mut random = Random::new(0x5eed);
    for number in 0..count {
        let text = match number % 4 {
            0 => spliced(&mut random, &texts[..chosen]),
            1 => from_alphabet(&mut random),
            2 => from_ranges(&mut random),
            _ => shuffled_pieces(&mut random),
        };
        texts.push(text);
    }
    texts
}

/// xorshift64*, so that a text has the same number everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

fn spliced(random: &mut Random, texts: &[String]) -> String {
    let mut spliced = String::new();
    for _ in 0..1 + random.below(4) {
        let text: Vec<char> = texts[random.below(texts.len())].chars().collect();
        if text.is_empty() {
            continue;
        }
        let start = random.below(text.len());
        let length = 1 + random.below(20);
        spliced.extend(text.iter().skip(start).take(length));
    }
    spliced
}

fn from_alphabet(random: &mut Random) -> String {
    const ALPHABETS: [&str; 10] = [
        " \n\t\r a1",
        "aA '’stSTreREveVEllLLmMdD",
        "0123456789 .,",
        "ab \u{a0}\u{3000}\u{2009}\n",
        "é e\u{301}ñ n\u{303} ",
        "!?.,;:()[]{}<>/\\|`~@#$%^&*-_=+'\" \n",
        "漢字かなカナ한글 ،。、！ a1\n",
        "أبت ١٢ كم हिं दी ไทย ๑ ",
        "😀👍🏽\u{200d}♂️🇩🇪 a ",
        "\u{0}\u{1}\u{4}\u{1b}\u{7f}\u{85} !a\n",
    ];
    let letters: Vec<char> = random.pick(&ALPHABETS).chars().collect();
    (0..1 + random.below(40)).map(|_| letters[random.below(letters.len())]).collect()
}

/// Characters of all kinds, those without a meaning included. Left out are the ones that got theirs
/// in Unicode 16 or later, which llama.cpp's tables don't know yet.
fn from_ranges(random: &mut Random) -> String {
    const RANGES: [(u32, u32); 30] = [
        (0x00, 0x7f),
        (0x20, 0x7e),
        (0x80, 0x24f),
        (0x2b0, 0x36f),
        (0x370, 0x52f),
        (0x531, 0x5ff),
        (0x600, 0x6ff),
        (0x900, 0xaff),
        (0xe00, 0xeff),
        (0x10a0, 0x13ff),
        (0x1e00, 0x1fff),
        (0x2000, 0x206f),
        (0x2070, 0x23ff),
        (0x2460, 0x2bff),
        (0x3000, 0x30ff),
        (0x3400, 0x9fff),
        (0xac00, 0xd7a3),
        (0xe000, 0xf8ff),
        (0xf900, 0xfaff),
        (0xfb00, 0xfdff),
        (0xfe00, 0xffff),
        (0x10000, 0x1057f),
        (0x1d400, 0x1d7ff),
        (0x1f300, 0x1f6ff),
        (0x1f900, 0x1f9ff),
        (0x20000, 0x2a6df),
        (0x40000, 0x4ffff),
        (0x90000, 0x9ffff),
        (0xe0000, 0xe01ef),
        (0x100000, 0x10ffff),
    ];
    let mut text = String::new();
    for _ in 0..1 + random.below(20) {
        let (first, last) = RANGES[random.below(RANGES.len())];
        let code = first + random.below((last - first + 1) as usize) as u32;
        text.extend(char::from_u32(code));
        if random.below(5) == 0 {
            text.push(' ');
        }
    }
    text
}

fn shuffled_pieces(random: &mut Random) -> String {
    const PIECES: [&str; 40] = [
        "the",
        "The",
        "THE",
        "ing",
        "word",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "'s",
        "'S",
        "'re",
        "'LL",
        "'",
        "1",
        "22",
        "333",
        "4444",
        "é",
        "ñ",
        "漢",
        "字",
        "か",
        "한",
        "я",
        "ع",
        "😀",
        "👩‍💻",
        "!",
        "...",
        "/",
        "\\",
        "_",
        "-",
        "=",
        "<|im_end|>",
        "\u{a0}",
    ];
    (0..1 + random.below(25)).map(|_| random.pick(&PIECES)).collect()
}
