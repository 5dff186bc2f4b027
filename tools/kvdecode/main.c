/* SPDX-License-Identifier: Apache-2.0 */
/* kvdecode: the reference decoder, on a mount or in plain memory. */
#include <errno.h>
#include <string.h>
#include "tools/common/cli.h"
#include "tools/kvdecode/kvdecode.h"

#define MAX_SAMPLES 1000u

struct options {
	const char *mount, *sequence, *logits, *temperature, *model, *prompt;
	u64 steps, seed, samples;
	bool stats;
	char ns[NAME_MAX + 1], name[NAME_MAX + 1]; /* of the sequence */
};

static int parse(struct options *o, int argc, char **argv)
{
	const struct cli_option options[] = {
		{"mount", 'm', CLI_TEXT, &o->mount, "MOUNT", "keep KV in this mount, else in plain memory"},
		{"sequence", 0, CLI_TEXT, &o->sequence, "NS/NAME", "its name in MOUNT"},
		{"steps", 'n', CLI_U64, &o->steps, "N", "tokens to generate (default 64)"},
		{"samples", 0, CLI_U64, &o->samples, "N", "fork after the prompt, N alternatives (at most 1000)"},
		{"temperature", 0, CLI_TEXT, &o->temperature, "T", "0 (default): the likeliest token"},
		{"seed", 0, CLI_U64, &o->seed, "N", "of what is drawn (default 1)"},
		{"logits", 0, CLI_TEXT, &o->logits, "FILE", "write the f32 logits of each new position"},
		{"stats", 0, CLI_FLAG, &o->stats, NULL, "tokens cached and computed, on stderr"},
	};
	const struct cli_command command = {
		"kvdecode", "[OPTION...] MODEL PROMPT",
		"Continues PROMPT with a small Llama: a checkpoint of llama2.c, with tok512.bin beside it. What the\n"
		"mount has of the prompt is not computed again; the logits are the same bits either way.",
		options, ARRAY_SIZE(options), 2, 2};
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status;
	o->model = args[0];
	o->prompt = args[1];
	if (o->samples > MAX_SAMPLES) {
		cli_error("--samples is at most %u", MAX_SAMPLES);
		return CLI_USAGE;
	}
	if (!o->mount == !o->sequence &&
	    (!o->mount || sscanf(o->sequence, "%255[^/]/%255[^/]", o->ns, o->name) == 2))
		return CLI_OK;
	cli_error("--mount MOUNT and --sequence NAMESPACE/NAME go together (see kvdecode --help)");
	return CLI_USAGE;
}

/* One answer: behind the prompt itself, or on a fork of it. */
static int answer(const struct options *o, const struct stream *prompt, u32 nr)
{
	struct stream s = *prompt;
	char name[NAME_MAX + 16];
	int err;

	snprintf(name, sizeof(name), "%s.%u", o->name, nr + 1);
	if (o->samples)
		s.kv = kv_open(prompt->kv->store, name, prompt->kv, NULL, s.nr_ids);
	if (!s.kv)
		return -EIO;
	if (nr) /* the logits behind the prompt again */
		decoder_step(s.d, prompt->kv, s.ids[s.nr_ids - 1], s.nr_ids - 1);
	s.seed += nr;
	fputs(o->prompt, stdout);
	err = stream_generate(&s);
	putchar('\n');
	if (o->samples)
		kv_close(s.kv);
	return err;
}

static int decode(const struct options *o, struct stream *s, struct kv_store *store)
{
	int err = o->mount ? kv_store_open(store) : 0;

	s->kv = err ? NULL : kv_open(store, o->name, NULL, s->ids, s->nr_ids);
	if (!s->kv)
		return -EIO;
	if (o->stats)
		fprintf(stderr, "prompt_tokens: %u\ncached_tokens: %u\n", s->nr_ids, s->kv->tokens);
	err = stream_prompt(s);
	for (u32 i = 0; !err && i < max(o->samples, 1u); i++)
		err = answer(o, s, i);
	if (o->stats)
		fprintf(stderr, "computed_tokens: %llu\n", (unsigned long long)s->d->nr_steps);
	kv_close(s->kv);
	return err;
}

static int run(const struct options *o, const struct model *m, const struct tokenizer *t)
{
	struct kv_store store = {.m = m, .mount = o->mount, .ns = o->ns};
	struct decoder d;
	struct stream s = {.d = &d, .t = t, .text = stdout, .steps = (u32)min(o->steps, UINT32_MAX),
			   .temperature = strtof(o->temperature, NULL), .seed = o->seed};
	int nr, err = decoder_init(&d, m);

	s.ids = err ? NULL : calloc(m->seq_len, sizeof(*s.ids));
	s.logits = o->logits ? fopen(o->logits, "we") : NULL;
	nr = s.ids ? tokenizer_encode(t, o->prompt, s.ids, m->seq_len) : -ENOMEM;
	s.nr_ids = (u32)max(nr, 0);
	err = nr < 0 ? nr : o->logits && !s.logits ? -EIO : decode(o, &s, &store);
	kvc_close(store.kvc);
	if ((o->logits && (!s.logits || fclose(s.logits))) | fflush(stdout)) {
		cli_error("the output can not be written");
		err = -EIO;
	}
	free(s.ids);
	free(d.x);
	return err;
}

int main(int argc, char **argv)
{
	struct options o = {.temperature = "0", .steps = 64, .seed = 1};
	struct tokenizer t = {.nr = 0};
	struct model m;
	int err, status;

	cli_set_program("kvdecode");
	status = parse(&o, argc, argv);
	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	err = model_load(&m, o.model);
	if (!err)
		err = tokenizer_load(&t, o.model, m.vocab);
	if (!err)
		err = run(&o, &m, &t);
	tokenizer_free(&t);
	model_free(&m);
	return err ? CLI_FAILED : CLI_OK;
}
