//! The program as people run it: exit codes, messages, files, roles.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kestrel-perf"));
    command.args(arguments.split_whitespace());
    command
}

fn run(arguments: &str) -> Output {
    command(arguments).output().expect("the program starts")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A path of this test's own.
fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

#[test]
fn what_cannot_be_done_is_said_clearly() {
    for (arguments, code, words) in [
        ("--size 8Q rate", 2, "unknown unit"),
        ("--cores 100000 rate", 1, "core 100000"),
        ("report /nonexistent/report.json", 1, "/nonexistent/report.json"),
        ("rate --json /nonexistent/folder/x.json", 1, "/nonexistent/folder"),
        ("rate --json .", 1, "it is a folder"),
        ("rate --json x --html x", 1, "both name"),
        ("rma --size 0", 2, "nothing to write or read"),
        ("rate --json x --connect 127.0.0.1:1", 2, "--json does not go with --connect"),
        ("pairs --processes 8 --listen", 2, "two shells are two"),
        ("--listen nowhere", 2, "HOST:PORT"),
        ("compare --only tea", 2, "door, rma, ucx, imb"),
        ("compare --seconds 1", 2, "5..=800"),
        ("atomics --size 64", 2, "64-bit types"),
        ("doctor --html /nonexistent/x.html", 2, "nothing to plot"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", error_of(&output));
        assert!(error_of(&output).contains(words), "{arguments}: {}", error_of(&output));
    }
}

#[test]
fn what_is_forced_and_not_there_is_an_error_that_says_why() {
    let command = |device| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kestrel-perf"));
        command.env("FI_KESTREL_DEVICE", device).args(["--provider", "verbs", "rate"]);
        command.output().unwrap()
    };
    let output = command("no_such_device");
    assert_eq!(output.status.code(), Some(1));
    let text = error_of(&output);
    assert!(text.contains("FI_KESTREL_TRANSPORT=verbs: "), "{text}");
    let output = command("no such name");
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains("FI_KESTREL_DEVICE=no such name"), "{output:?}");
}

/// What is printed before the names of the files that are written.
fn findings_of(printed: &str) -> Option<&str> {
    printed.split("\nwritten").next()
}

#[test]
fn a_report_is_written_and_rendered_again() {
    let (json, html) = (scratch("report.json"), scratch("report.html"));
    let output = run(&format!(
        "bandwidth --size 4K,8K --iterations 20 --json {} --html {}",
        json.display(),
        html.display()
    ));
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("ping-pong") && table.contains("floor"), "{table}");
    let page = std::fs::read_to_string(&html).expect("a page");
    assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("http"));

    let again = run(&format!("report {}", json.display()));
    assert!(again.status.success(), "{}", error_of(&again));
    assert_eq!(findings_of(&table), findings_of(&String::from_utf8_lossy(&again.stdout)));
    assert_eq!(std::fs::read_to_string(json.with_extension("html")).expect("a page"), page);
    for path in [json, html] {
        std::fs::remove_file(path).expect("the file was there");
    }
}

/// What can be written is, whatever becomes of the rest: here a file that has no room.
#[test]
fn a_page_is_left_where_the_report_cannot_be() {
    let html = scratch("left.html");
    let output = run(&format!("rate --iterations 20 --json /dev/full --html {}", html.display()));
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains("cannot write \"/dev/full\""), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains(&format!("written: {}", html.display())), "{table}");
    assert!(std::fs::read_to_string(&html).expect("a page").contains("</html>"));
    std::fs::remove_file(html).expect("the file was there");
}

/// Before a minute of measuring, where nobody named a file.
#[test]
fn a_suite_that_could_leave_no_report_does_not_begin() {
    let folder = scratch("suite");
    std::fs::create_dir_all(folder.join("kestrel-perf.json")).expect("a folder in the way");
    let output = command("all").current_dir(&folder).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let text = error_of(&output);
    assert!(text.contains("\"kestrel-perf.json\": it is a folder") && text.contains("--json PATH"));
    std::fs::remove_dir_all(folder).expect("the folder was there");
}

/// They would take turns on the core: nothing would be told of the floor, nor soon.
#[test]
fn ranks_that_share_a_core_have_no_floor() {
    let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let core = allowed.and_then(|list| list.trim().split(['-', ',']).next()).expect("one at least");
    let output = run(&format!("latency --size 8,64 --iterations 20 --cores {core}"));
    assert!(output.status.success(), "{}", error_of(&output));
    let why = format!("it shares core {core} with rank 0");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(error_of(&output).contains(&why) && table.contains(&why), "{table}");
    assert!(table.contains("in short rounds") && !table.contains("NaN"), "{table}");
    let output = run(&format!("floor --cores {core}"));
    assert!(!output.status.success() && error_of(&output).contains(&why), "{output:?}");
}

#[test]
fn one_sided_operations_are_measured() {
    for (job, words) in [
        ("rma --size 8,64K --iterations 50", ["write, one at a time", "read, 16 at a time"]),
        ("atomics --iterations 50", ["fetch-add", "compare-swap"]),
    ] {
        let output = command(job).env("FI_KESTREL_SPIN", "40").output().expect("it starts");
        assert!(output.status.success(), "{}", error_of(&output));
        let table = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(table.contains("settings: FI_KESTREL_SPIN=40"), "{table}");
        assert!(words.iter().all(|word| table.contains(word)), "{table}");
    }
}

/// Runs a job that leaves files, and says what it printed and wrote.
fn report_of(job: &str) -> (String, serde_json::Value, String) {
    report_with(job, &[])
}

/// The same, with settings.
fn report_with(job: &str, settings: &[(&str, &str)]) -> (String, serde_json::Value, String) {
    // Jobs run side by side, each with files of its own.
    let name = job.replace(' ', "_");
    let (json, html) = (scratch(&format!("{name}.json")), scratch(&format!("{name}.html")));
    let mut command =
        command(&format!("{job} --json {} --html {}", json.display(), html.display()));
    let output = command.envs(settings.iter().copied()).output().expect("the program starts");
    assert!(output.status.success(), "{}", error_of(&output));
    let read = |path| {
        let text = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(path).expect("it was there");
        text
    };
    let report = serde_json::from_str(&read(json)).expect("JSON");
    (String::from_utf8_lossy(&output.stdout).into_owned(), report, read(html))
}

#[test]
fn contexts_are_measured() {
    let (found, report, page) = report_of("contexts");
    for words in ["1 thread", "2 threads", "ratio", "one way"] {
        assert!(found.contains(words) && page.contains(words), "{words}: {found}");
    }
    let rows = &report["sections"][0]["rows"];
    assert!(rows[0]["messages_per_s"].as_f64() > Some(0.0), "{report}");
    assert_eq!(rows[1]["label"], "2 threads", "{report}");
}

#[test]
fn peeks_are_measured() {
    // The deepest are left out, which would take a debug build a quarter of a minute, and have their rows.
    let (found, report, page) = report_with("peeks", &[("FI_KESTREL_UNEXPECTED_BUDGET", "1M")]);
    for words in ["receive", "peek", "claim", "131072"] {
        assert!(found.contains(words) && page.contains(words), "{words}: {found}");
    }
    let section = &report["sections"][0];
    assert_eq!(section["rows"].as_array().map(Vec::len), Some(5 * 4), "{report}");
    assert_eq!(section["aims"].as_array().map(Vec::len), Some(3), "{report}");
}

#[test]
fn peers_that_are_not_spoken_to_are_measured() {
    let (found, report, page) = report_of("peers --peers 5");
    for words in ["alone", "inserted", "5 connected, idle", "5 others at its queue", "bytes"] {
        assert!(found.contains(words) && page.contains(words), "{words}: {found}");
    }
    let section = &report["sections"][0];
    let rows = section["rows"].as_array().cloned().unwrap_or_default();
    let all_have = |rows: &[serde_json::Value], what: &str, least| {
        assert!(rows.iter().all(|row| row[what].as_f64() > Some(least)), "{report}");
    };
    assert_eq!(rows.len(), 9, "{report}");
    // Endpoints to many peers and what these cost, connected endpoints and what they cost.
    all_have(&rows[..4], "ns", 0.0);
    all_have(&rows[4..6], "bytes", 8.0);
    all_have(&rows[6..], "ns", 0.0);
    all_have(&rows[8..], "bytes", 8.0);
    assert_eq!(section["aims"].as_array().map(Vec::len), Some(4), "{report}");
}

#[test]
fn peeks_are_measured_at_the_depths_that_are_asked_for() {
    let (_, report, _) = report_of("peeks --depth 7 --iterations 70");
    let rows = report["sections"][0]["rows"].as_array().cloned().unwrap_or_default();
    assert!(rows.len() == 4 && rows.iter().all(|row| row["depth"] == 7), "{report}");
}

/// Where less may wait than a depth needs, it would wait for room for ever.
#[test]
fn peeks_at_more_than_may_wait_are_left_out() {
    let mut command = command("peeks --depth 64,32768 --iterations 64");
    let output = command.env("FI_KESTREL_UNEXPECTED_BUDGET", "64K").output().expect("it starts");
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let left_out = "left out: longer than FI_KESTREL_UNEXPECTED_BUDGET holds";
    assert_eq!(table.matches(left_out).count(), 4, "{table}");
    let rows_at = |depth: &str| table.lines().filter(|line| line.contains(depth)).count();
    assert_eq!((rows_at(" 64 deep "), rows_at(" 32768 deep ")), (4, 4), "{table}");
}

#[test]
fn many_processes_and_deep_queues_have_messages_of_the_size_that_is_asked_for() {
    let sizes_of = |report: &serde_json::Value, series: &str| -> Vec<u64> {
        let rows = report["sections"][0]["rows"].as_array().cloned().unwrap_or_default();
        let of = |row: &&serde_json::Value| row["series"].as_str().unwrap().starts_with(series);
        rows.iter().filter(of).filter_map(|row| row["size"].as_u64()).collect()
    };
    let (_, report, _) = report_of("pairs --processes 2 --size 64,20K --iterations 30");
    assert_eq!(sizes_of(&report, "all-to-all"), [64, 20 << 10], "{report}");
    let (found, report, _) = report_of("matching --size 8,20K --depth 16,4096 --iterations 16");
    assert_eq!(sizes_of(&report, "unexpected, any"), [8, 8, 20 << 10, 20 << 10], "{report}");
    assert!(found.contains("left out: longer than FI_KESTREL_UNEXPECTED_BUDGET"), "{found}");
}

#[test]
fn whoever_is_missing_is_left_out_of_a_comparison() {
    let (json, html) = (scratch("compare.json"), scratch("compare.html"));
    let output = run(&format!(
        "compare --only door,rma,imb --library /nonexistent --seconds 5 --json {} --html {}",
        json.display(),
        html.display()
    ));
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = table.lines().filter(|line| line.contains("left out:")).collect();
    assert_eq!(lines.len(), 2, "once for libfabric, once for Intel MPI: {table}");
    assert!(lines.iter().all(|line| line.contains("libkestrel_fi.so")), "{table}");
    for path in [json, html] {
        assert!(std::fs::metadata(&path).is_ok_and(|file| file.len() > 0), "{}", path.display());
        std::fs::remove_file(path).expect("the file was there");
    }
}

/// Whoever answers as UCX does is measured beside kestrel: a script, here.
#[test]
fn another_program_is_compared_with() {
    use std::os::unix::fs::PermissionsExt;
    let (script, json) = (scratch("perftest.sh"), scratch("ucx.json"));
    let text = "#!/bin/sh\necho h,p50,avg,all,bw,bw,mr,mr\necho 100,0.500,1,1,1,1,1,2000000\n";
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let job = format!(
        "compare --only ucx --size 8 --iterations 50 --seconds 5 --json {}",
        json.display()
    );
    let output = command(&job).env("KESTREL_UCX_PERFTEST", &script).output().expect("it starts");
    assert!(output.status.success(), "{}", error_of(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for words in ["half round trip", "one way", "UCX", "500.0 ns", "of UCX's tag_bw", "p10 to p90"]
    {
        assert!(table.contains(words), "{words} is missing:\n{table}");
    }
    let again = run(&format!("report {}", json.display()));
    let printed = String::from_utf8_lossy(&again.stdout).into_owned();
    assert_eq!(findings_of(&table), findings_of(&printed));
    for path in [script, json.with_extension("html"), json] {
        std::fs::remove_file(path).expect("the file was there");
    }
}

#[test]
fn ranks_of_a_launcher_find_each_other() {
    let job = format!("test-{}", std::process::id());
    let rank = |rank: usize| {
        let mut command = command("pairs --iterations 50");
        command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", "3").env("PMI_JOBID", &job);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    };
    let others = [rank(2), rank(1)];
    let first = rank(0).wait_with_output().expect("rank 0 ends");
    assert!(first.status.success(), "{}", error_of(&first));
    assert!(String::from_utf8_lossy(&first.stdout).contains("3 processes"));
    assert!(error_of(&first).contains("PMI"), "the bootstrap is named");
    for mut other in others {
        assert!(other.wait().expect("the rank ends").success());
    }
}

/// What one process does alone is not done by as many as a launcher starts, on the same cores.
#[test]
fn a_launcher_s_other_ranks_leave_alone_what_one_does() {
    for job in ["contexts", "peeks", "peers"] {
        let mut command = command(job);
        command.env("PMI_RANK", "1").env("PMI_SIZE", "3");
        let output = command.output().expect("the program starts");
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        let words = format!("rank 1: rank 0 alone does {job}");
        assert!(error_of(&output).contains(&words), "{}", error_of(&output));
    }
}

#[test]
fn buffers_are_touched_where_that_is_asked_for() {
    let (found, report, _) = report_of("bandwidth --size 8K,64K --iterations 20 --touch");
    assert!(found.contains("buffers written before and read after"), "{found}");
    let section = &report["sections"][0];
    let rows = section["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["ns"].as_f64() > Some(0.0)), "{report}");
    // What is compared with writes and reads nothing.
    assert!(rows.iter().all(|row| row["ratio"].is_null()), "{report}");
    let (found, report, _) = report_of("latency --size 8,64K --iterations 20 --touch");
    assert!(found.contains("buffers written before and read after"), "{found}");
    assert_eq!(report["sections"][0]["rows"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn two_shells_meet_by_an_address() {
    // Nobody else's: ports of launchers' jobs are above 20000, those that systems choose above 32767.
    let address = format!("127.0.0.1:{}", 10_000 + std::process::id() % 7_000);
    let json = scratch("two-shells.json");
    let job = "latency --size 64 --iterations 20";
    let mut first = command(&format!("{job} --listen {address} --json {}", json.display()));
    let first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let second = run(&format!("--connect {address}"));
    let first = first.wait_with_output().expect("rank 0 ends");
    assert!(first.status.success() && second.status.success(), "{first:?} {second:?}");
    let table = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(table.contains(&format!("two shells, --listen {address}")), "{table}");
    assert!(second.stdout.is_empty(), "rank 0 alone reports");
    std::fs::remove_file(json).expect("rank 0 wrote it");
}

/// As srun has them start on two hosts, both of which are this one here.
#[test]
fn ranks_of_a_step_over_hosts_meet_on_its_first() {
    let job = std::process::id().to_string();
    let rank = |rank: &str| {
        let mut command = command("latency --size 64 --iterations 20");
        let step = [
            ("SLURM_JOB_ID", job.as_str()),
            ("SLURM_PROCID", rank),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_STEP_NODELIST", "localhost,other[1-2]"),
        ];
        command.envs(step).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    };
    let mut second = rank("1");
    let first = rank("0").wait_with_output().expect("rank 0 ends");
    assert!(first.status.success(), "{}", error_of(&first));
    assert!(error_of(&first).contains("2 ranks by Slurm's environment, which meet at localhost:"));
    assert!(second.wait().expect("rank 1 ends").success());
}

#[test]
fn a_launcher_that_says_too_little_is_told_what_is_missing() {
    let with = |pairs: &[(&'static str, &'static str)]| {
        command("rate").envs(pairs.iter().copied()).output().expect("the program starts")
    };
    for (pairs, words) in [
        ([("PMIX_RANK", "0"), ("OMPI_UNIVERSE_SIZE", "2"), ("", "")], "PMIX_SIZE"),
        ([("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")], "--connect HOST:PORT"),
    ] {
        let pairs: Vec<_> = pairs.into_iter().filter(|(name, _)| !name.is_empty()).collect();
        let output = with(&pairs);
        assert_eq!(output.status.code(), Some(1), "{pairs:?}");
        assert!(error_of(&output).contains(words), "{}", error_of(&output));
    }
}

/// It has the rank and the size of its job, and nobody else comes.
#[test]
fn a_batch_script_measures_by_itself() {
    let mut command = command("latency --size 64 --iterations 20");
    command.envs([("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")]);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", error_of(&output));
    assert!(error_of(&output).contains("2 processes of its own"), "{}", error_of(&output));
}

/// The names of the threads that a process and its children have now.
fn threads_of(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut names = Vec::new();
    for task in tasks {
        let said = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        names.push(said("comm").trim().to_owned());
        let children = said("children");
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        names.extend(children.flat_map(threads_of));
    }
    names
}

/// Once it is seen nothing more is measured, since two ranks beside a helper that spins need minutes on
/// two cores. Which rank gets the core is not said.
#[test]
fn a_core_that_is_named_is_spun_on() {
    let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let core = allowed.and_then(|list| list.trim().split(['-', ',']).next()).expect("one at least");
    let mut command = command("rate --provider shm --progress auto");
    command.env("FI_KESTREL_CORES", core);
    let mut child = command.stdout(Stdio::null()).spawn().expect("the program starts");
    let mut spun = 0;
    while spun == 0 && child.try_wait().expect("it is ours").is_none() {
        let threads = threads_of(child.id());
        spun = threads.iter().filter(|name| *name == "kestrel-lcore").count();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // Fails only if it has ended already. Its other rank ends when its link closes.
    let _ = child.kill();
    child.wait().expect("it has ended");
    assert_eq!(spun, 1, "helpers that spin");
}

/// Nothing completes at whoever injects, so that it has to look.
#[test]
fn a_stream_ends_with_an_error_when_its_receiver_dies() {
    let mut command = command("rate --provider shm --iterations 1000000000");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut first = command.spawn().expect("the program starts");
    let children = format!("/proc/{0}/task/{0}/children", first.id());
    let second = loop {
        assert!(first.try_wait().expect("it is ours").is_none(), "it has ended before rank 1 came");
        let found = std::fs::read_to_string(&children).unwrap_or_default();
        if let Some(second) = found.split_whitespace().next().and_then(|child| child.parse().ok()) {
            break second;
        }
    };
    // It streams by then. Whenever it dies, rank 0 is to end.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    // SAFETY: the process is this one's grandchild, which nobody reaps before it ends.
    assert_eq!(unsafe { libc::kill(second, libc::SIGKILL) }, 0);
    let output = first.wait_with_output().expect("rank 0 ends");
    assert_eq!(output.status.code(), Some(1));
    let text = error_of(&output);
    let told = ["rank 0: an operation failed", "rank 0: a post was refused", "rank 1"];
    assert!(told.iter().any(|told| text.contains(told)), "{text}");
}

/// A core that no host has is refused, by name.
#[test]
fn a_core_that_is_not_there_is_refused() {
    let mut command = command("rate --provider shm --progress auto --iterations 100");
    let output = command.env("FI_KESTREL_CORES", "8191").output().expect("the program starts");
    assert!(!output.status.success());
    assert!(error_of(&output).contains("core 8191"), "{}", error_of(&output));
}

#[test]
fn the_doctor_speaks_of_everything() {
    let json = scratch("doctor.json");
    let output = run(&format!("doctor --json {}", json.display()));
    assert!(output.status.success(), "{}", error_of(&output));
    let written = std::fs::read_to_string(&json).expect("findings");
    std::fs::remove_file(json).expect("the file was there");
    let written: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    let findings = written["findings"].as_array().expect("a list");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = "cores,distance,copy routine,single copy,/dev/shm,memlock,userfaultfd,RDMA devices";
    for what in all.split(',') {
        assert!(text.contains(what), "{what} is missing:\n{text}");
        let of = |finding: &&serde_json::Value| finding["what"] == what;
        let finding = findings.iter().find(of).unwrap_or_else(|| panic!("{what}: {written}"));
        assert!(text.contains(finding["found"].as_str().expect("words")), "{finding}");
        assert!(["ok", "note", "bad"].iter().any(|mark| finding["mark"] == *mark), "{finding}");
    }
}
