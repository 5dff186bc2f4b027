/* SPDX-License-Identifier: Apache-2.0 */
/* kvdecode: the reference decoder, on a mount or in plain memory. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

struct options {
	const char *mount, *tokenizer, *random, *sequence, *logits, *temperature, *top_p, *model, *prompt;
	u64 steps, seed, samples;
	bool stats;
	float t, p; /* temperature, top_p */
};

static bool number(const char *text, float most, float *value)
{
	char *end;

	*value = strtof(text, &end);
	return end != text && !*end && *value >= 0 && *value <= most;
}

static int check(struct options *o)
{
	const char *slash = o->sequence ? strchr(o->sequence, '/') : NULL, *bad = NULL;

	if (!o->model == !o->random || (o->random && o->tokenizer))
		bad = "name a MODEL (with its --tokenizer) or --random-model, and one PROMPT";
	else if (!number(o->temperature, 100, &o->t) || !number(o->top_p, 1, &o->p))
		bad = "--temperature: from 0 to 100; --top-p: from 0 to 1";
	else if (o->samples > 1000 || o->steps > UINT32_MAX)
		bad = "--samples: at most 1000; --steps: less than 2^32";
	else if (o->sequence && (!o->mount || !slash || slash == o->sequence || !slash[1] ||
				 slash - o->sequence > NAME_MAX || strstr(o->sequence, "..")))
		bad = "--sequence: NAMESPACE/NAME in the root of --mount";
	if (bad)
		cli_error("%s (see kvdecode --help)", bad);
	return bad ? CLI_USAGE : CLI_OK;
}

static int parse(struct options *o, int argc, char **argv)
{
	const struct cli_option options[] = {
		{"mount", 'm', KVC_HAVE_LIBKVC ? CLI_TEXT : CLI_LATER, &o->mount, "MOUNT",
		 "keep KV in this mount (default: plain memory)"},
		{"sequence", 0, CLI_TEXT, &o->sequence, "NS/NAME", "its name in MOUNT, kept at the end"},
		{"tokenizer", 't', CLI_TEXT, &o->tokenizer, "FILE", "default: tok512.bin beside MODEL"},
		{"random-model", 0, CLI_TEXT, &o->random, "SEED:LAYERS,HEADS,KVHEADS,DIM,VOCAB",
		 "random weights; no MODEL and no tokenizer"},
		{"steps", 'n', CLI_U64, &o->steps, "N", "tokens to generate (default 64)"},
		{"samples", 0, CLI_U64, &o->samples, "N", "fork after the prompt, N alternatives"},
		{"temperature", 0, CLI_TEXT, &o->temperature, "T", "0 (default): the likeliest token"},
		{"top-p", 0, CLI_TEXT, &o->top_p, "P", "draw among these likeliest (default 0.9)"},
		{"seed", 0, CLI_U64, &o->seed, "N", "of what is drawn (default 1)"},
		{"logits", 0, CLI_TEXT, &o->logits, "FILE", "write the f32 logits of each new position"},
		{"stats", 0, CLI_FLAG, &o->stats, NULL, "tokens cached and computed, on stderr"},
	};
	const struct cli_command command = {
		"kvdecode", "[OPTION...] MODEL PROMPT",
		"Continues PROMPT with a small Llama (llama2.c's format) and prints the text. What the mount\n"
		"has of the prompt is not computed again; the logits are the same bits either way.",
		options, ARRAY_SIZE(options), 1, 2};
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status;
	o->prompt = args[cli_nr_args() - 1];
	o->model = cli_nr_args() == 2 ? args[0] : NULL;
	return check(o);
}

/* The ids of the prompt; those of a random model are its bytes. */
static int encode(const struct options *o, struct stream *s)
{
	u32 vocab = s->d->m->vocab, max = s->d->m->seq_len;
	int nr = s->t ? tokenizer_encode(s->t, o->prompt, s->ids, max) : (int)strlen(o->prompt);

	if (!s->t && (!nr || nr > max)) {
		cli_error("the prompt of a random model has from 1 to %u bytes", max);
		return -EINVAL;
	}
	for (int i = 0; !s->t && i < nr; i++)
		s->ids[i] = (u8)o->prompt[i] % vocab;
	s->nr_ids = (u32)nr;
	return min(nr, 0);
}

/* One answer: behind the prompt itself, or on a fork of it. */
static int answer(const struct options *o, const struct stream *prompt, const char *name, u32 nr)
{
	struct stream s = *prompt;
	char path[PATH_MAX + 16];
	int err = 0;

	snprintf(path, sizeof(path), "%s.%u", name, nr + 1);
	if (o->samples)
		err = prompt->kv->store->ops->fork(prompt->kv, path, &s.kv);
	if (err)
		return err;
	if (nr) /* the logits behind the prompt again */
		decoder_step(s.d, prompt->kv, s.ids[s.nr_ids - 1], s.nr_ids - 1);
	s.seed += nr;
	if (s.t)
		fputs(o->prompt, stdout);
	err = stream_generate(&s);
	putchar('\n');
	if (o->samples)
		s.kv->store->ops->close(s.kv);
	return err;
}

static int decode(const struct options *o, struct stream *s, struct kv_store *store, const char *name)
{
	u32 cached;
	int err = store->ops->open(store, name, s->ids, s->nr_ids, &s->kv);

	if (err)
		return err;
	cached = s->kv->tokens;
	err = stream_prompt(s);
	for (u32 i = 0; !err && i < max(o->samples, 1u); i++)
		err = answer(o, s, name, i);
	if (o->stats)
		fprintf(stderr, "prompt_tokens: %u\ncached_tokens: %u\ncomputed_tokens: %llu\n", s->nr_ids,
			cached, (unsigned long long)s->d->nr_steps);
	s->kv->store->ops->close(s->kv);
	return err;
}

/* The store that the options ask for, and the sequence's name: one of its own where none is given. */
static int run_in_store(const struct options *o, struct stream *s)
{
	const struct model *m = s->d->m;
	const struct kv_store shape = {m->layers, m->kv_heads, m->head_dim, m->seq_len,
				       m->fingerprint, NULL};
	struct kv_store *store;
	char ns[NAME_MAX + 1], name[PATH_MAX];
	int err, slash = o->sequence ? (int)(strchr(o->sequence, '/') - o->sequence) : 0;

	snprintf(ns, sizeof(ns), "kvdecode-%016llx", (unsigned long long)m->fingerprint);
	snprintf(name, sizeof(name), "run-%d", (int)getpid());
	if (o->sequence) {
		snprintf(ns, sizeof(ns), "%.*s", slash, o->sequence);
		snprintf(name, sizeof(name), "%s", o->sequence + slash + 1);
	}
#if KVC_HAVE_LIBKVC
	if (o->mount)
		err = kv_mount_store(&shape, o->mount, ns, !o->sequence, &store);
	else
#endif
		err = kv_mem_store(&shape, &store);
	if (err)
		return err;
	err = decode(o, s, store, name);
	store->ops->destroy(store);
	return err;
}

static int run(const struct options *o, const struct model *m, const struct tokenizer *t)
{
	struct decoder d;
	struct stream s = {&d, NULL, t, stdout, NULL, NULL, 0, (u32)o->steps, o->t, o->p, o->seed};
	int err = decoder_init(&d, m);

	s.ids = calloc(m->seq_len, sizeof(*s.ids));
	if (o->logits)
		s.logits = fopen(o->logits, "we");
	if (!err && (!s.ids || (o->logits && !s.logits))) {
		err = -errno;
		cli_error("%s: %s", o->logits ? o->logits : "start", strerror(errno));
	}
	if (!err)
		err = encode(o, &s);
	if (!err)
		err = run_in_store(o, &s);
	if ((s.logits && fclose(s.logits)) | fflush(stdout) && !err) {
		cli_error("the output can not be written");
		err = -EIO;
	}
	free(s.ids);
	decoder_free(&d);
	return err;
}

int main(int argc, char **argv)
{
	struct options o = {.temperature = "0", .top_p = "0.9", .steps = 64, .seed = 1};
	char beside[PATH_MAX];
	struct model m;
	struct tokenizer t = {0};
	int err, status;

	cli_set_program("kvdecode");
	status = parse(&o, argc, argv);
	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	err = o.random ? model_random(&m, o.random) : model_load(&m, o.model);
	if (!err && o.model) {
		const char *slash = strrchr(o.model, '/');

		snprintf(beside, sizeof(beside), "%.*stok512.bin", slash ? (int)(slash + 1 - o.model) : 0,
			 o.model);
		err = tokenizer_load(&t, o.tokenizer ? o.tokenizer : beside, m.vocab);
	}
	if (!err)
		err = run(&o, &m, o.model ? &t : NULL);
	tokenizer_free(&t);
	model_free(&m);
	return err ? CLI_FAILED : CLI_OK;
}
