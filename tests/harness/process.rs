//! A program that runs no longer than the tests that started it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Runs its arguments until they end or stdin is closed, whichever comes first.
const LEASH: &str = r#"
exec 3<&0
"$@" </dev/null 3<&- & child=$!
(cat <&3; kill $child) >/dev/null 2>&1 &
exec 3<&-
wait $child"#;

/// A program that runs until it is dropped, or until the tests' process ends however it ends.
pub struct Leashed {
    child: Child,
    /// The program ends when this is closed.
    lifeline: Option<ChildStdin>,
    output: Arc<Output>,
}

/// What a program has said.
#[derive(Default)]
struct Output {
    text: Mutex<(String, u32)>,
    changed: Condvar,
}

impl Output {
    /// Collects lines until the stream ends.
    fn collect(self: &Arc<Self>, stream: impl Read + Send + 'static) {
        let output = self.clone();
        output.text.lock().unwrap().1 += 1;
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let mut text = output.text.lock().unwrap();
                text.0.push_str(&line);
                text.0.push('\n');
                output.changed.notify_all();
            }
            output.text.lock().unwrap().1 -= 1;
            output.changed.notify_all();
        });
    }

    /// Waits until `find` finds something, or the program's output has ended.
    fn wait<T>(&self, patience: Duration, find: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let until = Instant::now() + patience;
        let mut text = self.text.lock().unwrap();
        loop {
            if let Some(found) = find(&text.0) {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if text.1 == 0 || left.is_zero() {
                return Err(text.0.clone());
            }
            text = self.changed.wait_timeout(text, left).unwrap().0;
        }
    }
}

impl Leashed {
    /// Starts a program with what its command has of arguments and environment.
    ///
    /// # Panics
    /// When there is no `sh`.
    pub fn start(program: &Command) -> Self {
        let mut leash = Command::new("sh");
        leash.args(["-c", LEASH, "sh"]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => leash.env(name, value),
                None => leash.env_remove(name),
            };
        }
        let mut child = leash
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let output = Arc::new(Output::default());
        output.collect(child.stdout.take().expect("piped"));
        output.collect(child.stderr.take().expect("piped"));
        let lifeline = child.stdin.take();
        Self { child, lifeline, output }
    }

    /// Everything that the program has written so far.
    pub fn output(&self) -> String {
        self.output.text.lock().unwrap().0.clone()
    }

    /// Waits until `find` finds something in the program's output. The whole output when that ends
    /// before, or when `patience` is over.
    pub fn wait<T>(
        &self,
        patience: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        self.output.wait(patience, find)
    }

    /// The program's process.
    ///
    /// # Panics
    /// When it has ended.
    pub fn pid(&self) -> u32 {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(path).expect("the shell that leashes it");
        let mut ids = children.split_whitespace();
        ids.next().and_then(|id| id.parse().ok()).expect("the program is the shell's first child")
    }

    /// The program's resident memory.
    pub fn memory(&self) -> Memory {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("the program's status");
        let size = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes =
                line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kilobytes.expect("a size") * 1024
        };
        Memory { resident: size("VmRSS:"), peak: size("VmHWM:") }
    }

    /// Waits for the program's end.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        self.child.wait().expect("the child can be waited for")
    }

    /// Tells the program to stop as Ctrl-C does, and waits for its end.
    pub fn stop(mut self) -> (ExitStatus, String) {
        self.lifeline.take();
        (self.wait_for_end(), self.output())
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        self.lifeline.take();
        // A program that does not end keeps the test from ending, which is to be seen.
        let _ = self.child.wait();
    }
}

/// A process's resident memory in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Now.
    pub resident: u64,
    /// At the most.
    pub peak: u64,
}
