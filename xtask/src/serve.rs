//! Serving with the host that was built: its lines are passed on, and when it says that it is ready, two commands to
//! try it with are printed.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::models;
use crate::openvino;
use crate::project::Project;

/// What the host prints on stdout once it takes requests, before the address.
const READY: &str = "Serving ";

/// Runs `spinfer up` until it ends, and gives its exit code.
pub fn until_stopped(project: &Project, args: &[String]) -> Result<ExitCode> {
    let mut command = Command::new(project.host());
    command.arg("up");
    if !chooses_application(args) {
        let both = openvino::application(project)?;
        command.arg("--from").arg(both.as_deref().unwrap_or(Path::new("spin.toml")));
    }
    command.envs(openvino::library(project).map(|library| (openvino::LIBRARY, library)));
    command.args(args).current_dir(&project.root).stdout(Stdio::piped());

    // From here on only the server decides when to stop. Handlers, unlike ignored signals, are not inherited by it.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("taking over signals")?;
    let mut server = command
        .spawn()
        .with_context(|| format!("could not run {}", project.show(&project.host())))?;
    let pid = Pid::from_child(&server);
    thread::spawn(move || {
        for signal in signals.forever() {
            // Ctrl-C reaches the server by itself, as it is in the terminal's process group too.
            if signal == SIGTERM {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    });

    relay(server.stdout.take().expect("piped"));
    wait(&mut server)
}

fn chooses_application(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "-f" || arg == "--from" || arg.starts_with("--from="))
}

/// Passes the server's lines on. Nobody listening any more is no reason to stop reading, which would block the server.
fn relay(from: ChildStdout) {
    let mut stdout = io::stdout();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let _ = writeln!(stdout, "{line}");
        if let Some(url) = line.strip_prefix(READY) {
            let _ = writeln!(stdout, "{}", invitation(url.trim()));
        }
        let _ = stdout.flush();
    }
}

/// Two requests, ready to paste into a shell: one answered at once, one streamed.
fn invitation(url: &str) -> String {
    let model = models::DEFAULT.id;
    let request = |curl: &str, more: &str| {
        format!(
            "  {curl} {url}/v1/completions -H 'Content-Type: application/json' \
             -d '{{\"model\": \"{model}\", \"prompt\": \"The capital of France is\", \"max_tokens\": 16{more}}}'"
        )
    };
    format!(
        "\nTry it from another terminal:\n{}\n\nThe same, streamed:\n{}\n",
        request("curl", ""),
        request("curl -N", ", \"stream\": true")
    )
}

fn wait(server: &mut Child) -> Result<ExitCode> {
    let status = server.wait().context("waiting for the server")?;
    Ok(exit_code(status))
}

/// The code a shell would give: a server that a signal ended counts as 128 and the signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invitation_is_two_whole_commands() {
        let text = invitation("http://127.0.0.1:3000");
        let commands: Vec<&str> =
            text.lines().filter(|line| line.trim_start().starts_with("curl")).collect();
        assert_eq!(commands.len(), 2);
        for command in &commands {
            assert!(command.contains(" http://127.0.0.1:3000/v1/completions "));
            let body = command.split_once("-d '").unwrap().1;
            let body: serde_json::Value =
                serde_json::from_str(body.strip_suffix('\'').unwrap()).unwrap();
            assert_eq!(body["model"], models::DEFAULT.id);
        }
        assert!(commands[1].contains("curl -N") && commands[1].contains("\"stream\": true"));
    }

    #[test]
    fn the_application_is_chosen_once() {
        let args = |line: &[&str]| line.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        assert!(!chooses_application(&args(&["--listen", "[::1]:1"])));
        assert!(chooses_application(&args(&["--from", "other.toml"])));
        assert!(chooses_application(&args(&["--from=other.toml"])));
    }
}
