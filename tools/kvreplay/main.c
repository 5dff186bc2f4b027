/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvreplay: run a trace of LLM requests against a kvcachefs mount, or against a simulated cache with
 * room for everything, and say what the cache was worth.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/common/mountroot.h"
#include "tools/kvreplay/replay.h"
#include "tools/kvreplay/synth.h"

#define DEFAULT_TOKEN_BYTES  64
#define DEFAULT_BLOCK_TOKENS 64
#define MAX_TOKEN_BYTES	     MIB(16)

struct kvreplay {
	const char *trace_path, *mount, *namespace, *report_dir, *trace_out;
	bool synth, simulate, decode, realtime, keep, json;
	u64 token_bytes, block_tokens, limit, workers, seed, requests, agent_percent;
};

static int parse(struct kvreplay *k, int argc, char **argv, char ***args)
{
	const struct cli_option options[] = {
		{"mount", 'm', CLI_TEXT, &k->mount, "MOUNT", "replay on this mount"},
		{"virtual", 0, CLI_FLAG, &k->simulate, NULL, "simulate, with room for everything"},
		{"synth", 0, CLI_FLAG, &k->synth, NULL, "make a trace instead of reading one"},
		{"seed", 0, CLI_U64, &k->seed, "N", "of --synth (default 1)"},
		{"requests", 0, CLI_U64, &k->requests, "N", "of --synth (default 1000)"},
		{"agents", 0, CLI_U64, &k->agent_percent, "PCT", "agent sessions of --synth (30)"},
		{"trace-out", 0, CLI_TEXT, &k->trace_out, "FILE", "write the trace of --synth"},
		{"token-bytes", 0, CLI_SIZE, &k->token_bytes, "N", "KV bytes of a token (default 64)"},
		{"block-tokens", 0, CLI_U64, &k->block_tokens, "N", "16 32 64 128 256 (default 64)"},
		{"namespace", 0, CLI_TEXT, &k->namespace, "NS", "in MOUNT (default one of its own)"},
		{"keep", 0, CLI_FLAG, &k->keep, NULL, "leave the namespace in place"},
		{"limit", 'n', CLI_COUNT, &k->limit, "N", "first N requests only"},
		{"requests-in-flight", 0, CLI_U64, &k->workers, "N", "at once (default 1)"},
		{"decode", 0, CLI_FLAG, &k->decode, NULL, "store outputs too"},
		{"realtime", 0, CLI_FLAG, &k->realtime, NULL, "wait as the trace's times say"},
		{"json", 'j', CLI_FLAG, &k->json, NULL, "print JSON"},
		{"report", 0, CLI_TEXT, &k->report_dir, "DIR", "write summary.json, requests.csv"},
		{"hbm", 0, CLI_LATER, NULL, "SIZE", "simulated tier"},
		{"dram", 0, CLI_LATER, NULL, "SIZE", "simulated tier"},
		{"nvme", 0, CLI_LATER, NULL, "SIZE", "simulated tier"},
		{"policy", 0, CLI_LATER, NULL, "P", "simulated eviction policy"},
		{"nodes", 0, CLI_LATER, NULL, "N", "simulated nodes"},
	};
	const struct cli_command command = {
		"kvreplay", "TRACE|--synth [--mount MOUNT | --virtual] [OPTION...]",
		"Runs the requests of TRACE (JSON lines with hash_ids or hash_runs, plain or gzip)\n"
		"against a mount, the way an engine would, and checks every byte that comes back. Prints\n"
		"requests, tokens, token hit rate, bytes moved per tier, restore latency.",
		options, ARRAY_SIZE(options), 0, 1};

	return cli_parse(&command, argc, argv, args);
}

static int bad_usage(const char *what)
{
	cli_error("%s (see kvreplay --help)", what);
	return CLI_USAGE;
}

static int check(struct kvreplay *k)
{
	if (!k->trace_path == !k->synth)
		return bad_usage("name one trace, or --synth");
	if (k->trace_out && !k->synth)
		return bad_usage("--trace-out: goes with --synth only");
	if (k->mount && k->simulate)
		return bad_usage("only one of --mount, --virtual");
	if (!k->mount && !k->simulate && !k->trace_out)
		return bad_usage("name one of --mount, --virtual");
	if (!k->mount && (k->decode || k->namespace || k->keep))
		return bad_usage("--decode, --namespace, --keep: go with --mount only");
	if (k->block_tokens < 16 || k->block_tokens > 256 ||
	    (k->block_tokens & (k->block_tokens - 1)))
		return bad_usage("--block-tokens: a power of two from 16 to 256");
	if (!k->token_bytes || k->token_bytes > MAX_TOKEN_BYTES)
		return bad_usage("--token-bytes: from 1 to 16M");
	if (!k->workers || k->workers > REPLAY_MAX_WORKERS)
		return bad_usage("--requests-in-flight: from 1 to 256");
	if (!k->requests || k->requests > SYNTH_MAX_REQUESTS)
		return bad_usage("--requests: from 1 to 10000000");
	if (k->agent_percent > 100)
		return bad_usage("--agents: from 0 to 100");
	return CLI_OK;
}

static struct trace *make_synth(const struct kvreplay *k)
{
	const struct synth_options o = {
		.seed = k->seed,
		.nr_requests = k->requests,
		.agent_percent = (u32)k->agent_percent,
	};
	struct trace *trace = synth_make(&o);

	if (!trace)
		cli_error("--synth: out of memory");
	return trace;
}

static struct trace *open_trace(const struct kvreplay *k)
{
	struct textbuf why = TEXTBUF_INIT;
	struct trace *trace = NULL;

	if (k->synth)
		return make_synth(k);
	if (trace_open(k->trace_path, &trace, &why))
		cli_error("%s", why.text);
	textbuf_free(&why);
	return trace;
}

static int write_trace(const struct kvreplay *k)
{
	struct trace *trace = make_synth(k);
	struct textbuf line = TEXTBUF_INIT;
	struct trace_request rq = {0};
	FILE *file = fopen(k->trace_out, "we");
	bool bad = !trace || !file;

	while (!bad && trace_next(trace, &rq, &line) > 0) {
		line.len = 0;
		trace_write_line(&rq, &line);
		bad = line.err || fwrite(line.text, 1, line.len, file) != line.len;
	}
	if (file && fclose(file))
		bad = true;
	if (bad)
		cli_error("%s: the trace can not be written: %s", k->trace_out, strerror(errno));
	trace_request_free(&rq);
	textbuf_free(&line);
	trace_close(trace);
	return bad ? CLI_FAILED : CLI_OK;
}

/* Counters of the mount, where it has them. */
static void take_counters(const struct kvreplay *k, struct report *report, bool after)
{
	struct textbuf text = TEXTBUF_INIT;
	struct mountroot mr;

	if (!mountroot_find(k->mount, &mr) && !mountroot_read(&mr, "stat", &text) && text.text)
		report_counters(report, text.text, after);
	textbuf_free(&text);
}

static int run(const struct kvreplay *k, struct trace *trace, struct replay_target *target,
	       struct report *report)
{
	const struct replay_options o = {
		.limit = k->limit,
		.workers = k->workers,
		.block_tokens = (u32)k->block_tokens,
		.realtime = k->realtime,
	};
	struct textbuf why = TEXTBUF_INIT;
	int status = CLI_OK;
	int err;

	err = replay_run(trace, target, &o, report, &why);
	report_end_progress(report);
	if (err) {
		cli_error("%s", why.text ? why.text : "out of memory");
		status = CLI_FAILED;
	}
	textbuf_free(&why);
	if (replay_stop)
		cli_error("interrupted; the report covers what was done");
	return replay_stop ? CLI_FAILED : status;
}

static int run_mount(const struct kvreplay *k, struct trace *trace, struct report *report)
{
	const struct mount_options o = {
		.mount = k->mount,
		.name = k->namespace,
		.token_bytes = k->token_bytes,
		.block_tokens = (u32)k->block_tokens,
		.decode = k->decode,
		.keep = k->keep || k->namespace,
	};
	struct mount_target m;
	int status;

	if (mount_open(&m, &o))
		return CLI_FAILED;
	take_counters(k, report, false);
	status = run(k, trace, &m.target, report);
	take_counters(k, report, true);
	mount_close(&m);
	return status;
}

static int run_virtual(const struct kvreplay *k, struct trace *trace, struct report *report)
{
	struct virtual_target v;
	int status = CLI_FAILED;

	if (virtual_open(&v))
		cli_error("out of memory");
	else
		status = run(k, trace, &v.target, report);
	report->unique_blocks = v.nr;
	virtual_close(&v);
	return status;
}

/* 0 when only the end of the trace can tell. */
static u64 expected_requests(const struct kvreplay *k)
{
	if (!k->synth)
		return 0;
	return k->limit ? min(k->limit, k->requests) : k->requests;
}

static int replay(const struct kvreplay *k, struct trace *trace)
{
	struct report report;
	int status = CLI_FAILED;

	if (!report_start(&report, k->mount ? "mount" : "virtual", k->report_dir)) {
		report.expected = expected_requests(k);
		status = k->mount ? run_mount(k, trace, &report) : run_virtual(k, trace, &report);
		if ((status == CLI_OK || report.requests) && report_finish(&report, k->json))
			status = CLI_FAILED;
		if (report.bad_blocks)
			cli_error("%llu cached blocks did not hold the bytes of their tokens",
				  (unsigned long long)report.bad_blocks);
		if (report.bad_blocks || report.failed)
			status = CLI_FAILED;
	}
	report_free(&report);
	return status;
}

static void on_signal(int sig)
{
	replay_stop = 1;
}

static void catch_signals(void)
{
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
}

int main(int argc, char **argv)
{
	struct kvreplay k = {
		.token_bytes = DEFAULT_TOKEN_BYTES,
		.block_tokens = DEFAULT_BLOCK_TOKENS,
		.workers = 1,
		.seed = 1,
		.requests = SYNTH_DEFAULT_REQUESTS,
		.agent_percent = 30,
	};
	struct trace *trace;
	char **args;
	int status;

	cli_set_program("kvreplay");
	status = parse(&k, argc, argv, &args);
	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	k.trace_path = cli_nr_args() ? args[0] : NULL;
	status = check(&k);
	if (status == CLI_OK && k.trace_out)
		status = write_trace(&k);
	if (status != CLI_OK || (!k.mount && !k.simulate))
		return status;
	trace = open_trace(&k);
	if (!trace)
		return CLI_FAILED;
	catch_signals();
	status = replay(&k, trace);
	trace_close(trace);
	return status;
}
