//! What the machine is, and how fast its memory is read.

use std::hint::black_box;
use std::time::Instant;

/// A line about the machine.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim())
    };
    let flags = field("flags");
    let has = |flag: &str| flags.split_whitespace().any(|found| found == flag);
    let vectors = match (has("avx512f"), has("avx2")) {
        (true, _) => "AVX-512",
        (false, true) => "AVX2",
        _ => "no AVX2",
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{threads} cores of {} ({vectors})", field("model name"))
}

/// Bytes a second, reading a buffer that no cache holds with a thread on each core: the best of some.
pub fn measure() -> f64 {
    const WORDS: usize = 64 << 20;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let buffer = vec![1_u64; WORDS];
    let part = WORDS.div_ceil(threads);
    let once = || {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(part) {
                scope.spawn(move || black_box(part.iter().copied().fold(0, u64::wrapping_add)));
            }
        });
        (WORDS * 8) as f64 / began.elapsed().as_secs_f64()
    };
    (0..7).map(|_| once()).fold(0.0, f64::max)
}
