/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl ns create, ns show. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tools/kvctl/geometry.h"
#include "tools/kvctl/kvctl.h"

/* What the command line of ns create said; texts NULL and counts 0 where it said nothing. */
struct ns_options {
	const char *hf_config, *dtype, *layout, *fingerprint, *group;
	u64 layers, kv_heads, head_dim, latent_dim, token_bytes, block_tokens;
	bool json;
};

static int parse_create(struct ns_options *o, int argc, char **argv, char ***args)
{
	const struct cli_option options[] = {
		{"hf-config", 0, CLI_TEXT, &o->hf_config, "FILE", "take the model's config.json"},
		{"layers", 0, CLI_COUNT, &o->layers, "N", "layers"},
		{"kv-heads", 0, CLI_COUNT, &o->kv_heads, "N", "key/value heads"},
		{"head-dim", 0, CLI_COUNT, &o->head_dim, "N", "elements of a head"},
		{"latent-dim", 0, CLI_COUNT, &o->latent_dim, "N", "MLA: latent + rope elements"},
		{"token-bytes", 0, CLI_SIZE, &o->token_bytes, "N", "opaque: bytes of a token"},
		{"dtype", 0, CLI_TEXT, &o->dtype, "D", "f32 f16 bf16 fp8_e4m3 fp8_e5m2"},
		{"block-tokens", 0, CLI_COUNT, &o->block_tokens, "N", "16 32 64 128 256 (default 64)"},
		{"layout", 0, CLI_TEXT, &o->layout, "L", "hnd (default) nhd mla opaque"},
		{"fingerprint", 0, CLI_TEXT, &o->fingerprint, "S",
		 "weights, tokenizer, RoPE, TP rank: bytes never cross it"},
		{"group", 0, CLI_TEXT, &o->group, "G", "group of layers that this namespace holds"},
		{"json", 'j', CLI_FLAG, &o->json, NULL, "print JSON"},
	};
	const struct cli_command command = {
		"kvctl ns create",
		"DIR (--hf-config FILE | --layers N (--kv-heads N --head-dim N --dtype D | "
		"--latent-dim N --dtype D | --token-bytes N)) [OPTION...]",
		"Makes DIR (created when missing) a namespace: writes DIR/.geometry. Options override\n"
		"what config.json says. Prints the geometry, what follows from it, and what padding\n"
		"blocks to whole pages costs in memory.",
		options, ARRAY_SIZE(options), 1, 1};

	return cli_parse(&command, argc, argv, args);
}

static int read_hf_config(const char *path, struct geometry *g)
{
	struct textbuf json = TEXTBUF_INIT, why = TEXTBUF_INIT;
	int err = mountroot_read_file(path, &json);
	int status = CLI_OK;

	if (err) {
		cli_error("%s: %s", path, strerror(-err));
		status = CLI_FAILED;
	} else if (geometry_from_hf(g, json.text ? json.text : "", &why)) {
		cli_error("%s: %s", path, why.text);
		status = CLI_FAILED;
	}
	textbuf_free(&json);
	textbuf_free(&why);
	return status;
}

/* An option that names another kind of geometry takes the config's kind away. */
static void override_kind(const struct ns_options *o, struct geometry *g)
{
	if (o->latent_dim || o->token_bytes)
		g->kv_heads = g->head_dim = 0;
	if (o->kv_heads || o->token_bytes)
		g->latent_dim = 0;
	if (o->latent_dim || o->kv_heads || o->token_bytes)
		*g->layout = '\0';
}

static int apply_options(const struct ns_options *o, struct geometry *g, struct textbuf *why)
{
	const struct {
		const char *key, *value;
	} texts[] = {{"dtype", o->dtype},
		     {"layout", o->layout},
		     {"fingerprint", o->fingerprint},
		     {"group", o->group}};
	const struct {
		u64 value, *member;
	} counts[] = {
		{o->layers, &g->layers},	 {o->kv_heads, &g->kv_heads},
		{o->head_dim, &g->head_dim},	 {o->latent_dim, &g->latent_dim},
		{o->token_bytes, &g->token_bytes}, {o->block_tokens, &g->block_tokens},
	};
	int err = 0;

	override_kind(o, g);
	for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
		if (counts[i].value)
			*counts[i].member = counts[i].value;
	for (size_t i = 0; i < ARRAY_SIZE(texts) && !err; i++)
		if (texts[i].value)
			err = geometry_set(g, texts[i].key, texts[i].value, why);
	/* The synopsis asks for a dtype; opaque tokens have none and need none. */
	if (!strcmp(g->layout, "opaque") || (o->token_bytes && !*g->layout))
		*g->dtype = '\0';
	return err;
}

/*
 * @why begins with keys of .geometry ("kv_heads, head_dim: missing"); who called ns create gave
 * options, so these are named first. @hint: what else was possible, when nothing chose a layout.
 */
static void print_refusal(const char *why, const char *hint)
{
	struct textbuf options = TEXTBUF_INIT;
	int nr_keys = (int)strcspn(why, ":");

	for (int i = 0; i < nr_keys; i++) {
		bool first = !i || why[i - 1] == ' ';

		textbuf_printf(&options, "%s%c", first ? "--" : "", why[i] == '_' ? '-' : why[i]);
	}
	cli_error("ns create: %s (%.*s)%s%s (see kvctl ns create --help)",
		  options.text ? options.text : "", nr_keys, why, why + nr_keys, hint);
	textbuf_free(&options);
}

static int build_geometry(const struct ns_options *o, struct geometry *g, struct geometry_sizes *s)
{
	struct textbuf why = TEXTBUF_INIT;
	int status = CLI_OK;
	bool chosen;

	*g = (struct geometry){0};
	if (o->hf_config)
		status = read_hf_config(o->hf_config, g);
	if (status == CLI_OK && (apply_options(o, g, &why) || geometry_complete(g, s, &why))) {
		chosen = o->layout || g->kv_heads || g->head_dim || g->latent_dim || g->token_bytes;
		print_refusal(why.text ? why.text : "", chosen ? "" :
			      "; or --latent-dim for layout mla, --token-bytes for layout opaque");
		status = CLI_USAGE;
	}
	textbuf_free(&why);
	return status;
}

static void add_sizes(cJSON *object, const struct geometry_sizes *s)
{
	kvctl_add_u64(object, "token_bytes", s->token_bytes);
	kvctl_add_u64(object, "block_bytes", s->block_bytes);
	kvctl_add_u64(object, "block_stride", s->block_stride);
	if (s->slice_bytes)
		kvctl_add_u64(object, "slice_bytes", s->slice_bytes);
	kvctl_add_u64(object, "padding_bytes", s->block_stride - s->block_bytes);
	cJSON_AddNumberToObject(object, "padding_percent",
				100.0 * (double)(s->block_stride - s->block_bytes) /
					(double)s->block_stride);
}

static void print_padding(const struct geometry_sizes *s)
{
	u64 pad = s->block_stride - s->block_bytes;

	if (pad)
		printf("# padding a block to whole 4096-byte pages costs %llu bytes, %.1f %% of its "
		       "memory; more block_tokens cost less\n",
		       (unsigned long long)pad, 100.0 * (double)pad / (double)s->block_stride);
	else
		printf("# a block is whole 4096-byte pages: no padding\n");
}

static const char *geometry_refusal(int err)
{
	switch (err) {
	case -ENOTEMPTY:
		return "the directory or one below it already holds files; use an empty one";
	case -EPERM:
		return "it is a namespace with another geometry and holds files, or lies in one; "
		       "choose another directory";
	case -EINVAL:
		return "the daemon refused a key or a value, or its DRAM tier is too small for such "
		       "blocks; its log says which";
	case -EROFS:
		return "the mount is read-only";
	}
	return strerror(-err);
}

static int write_geometry(const char *path, const struct textbuf *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	ssize_t n;
	int err = 0;

	if (fd < 0)
		return -errno;
	n = write(fd, text->text, text->len);
	if (n != (ssize_t)text->len)
		err = n < 0 ? -errno : -EIO;
	if (close(fd) && !err)
		err = -errno;
	return err;
}

/* The daemon adds computed lines to a geometry that it took; no other filesystem does. */
static bool geometry_taken(const char *path)
{
	struct textbuf text = TEXTBUF_INIT;
	bool taken = !mountroot_read_file(path, &text) && text.text &&
		     strstr(text.text, "block_bytes=");

	textbuf_free(&text);
	return taken;
}

static int create_namespace(const char *dir, const struct geometry *g)
{
	struct textbuf text = TEXTBUF_INIT;
	struct mountroot mr;
	char path[PATH_MAX];
	bool had_file, made_dir;
	int err = mountroot_find(dir, &mr);

	if (err == -ENODEV) {
		cli_error("%s: not on a kvcachefs mount (no .kvc/version in %s); nothing was made",
			  dir, mr.root);
		return CLI_FAILED;
	}
	err = err ?: kvctl_join(path, sizeof(path), dir, ".geometry");
	if (err) {
		cli_error("%s: %s", dir, strerror(-err));
		return CLI_FAILED;
	}
	made_dir = !mkdir(dir, 0777);
	if (!made_dir && errno != EEXIST) {
		cli_error("%s: can not be made: %s", dir, strerror(errno));
		return CLI_FAILED;
	}
	had_file = !access(path, F_OK);
	geometry_to_text(g, &text);
	err = text.err ? text.err : write_geometry(path, &text);
	textbuf_free(&text);
	if (!err && geometry_taken(path))
		return CLI_OK;
	cli_error("%s: %s", path, err ? geometry_refusal(err) :
		  "did not make its directory a namespace; see the daemon's log");
	if (!had_file)
		unlink(path);
	if (made_dir)
		rmdir(dir);
	return CLI_FAILED;
}

int kvctl_ns_create(int argc, char **argv)
{
	struct textbuf text = TEXTBUF_INIT;
	struct geometry_sizes sizes;
	struct ns_options o = {0};
	struct geometry g;
	cJSON *object;
	char **args;
	int status = parse_create(&o, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	status = build_geometry(&o, &g, &sizes);
	if (status == CLI_OK)
		status = create_namespace(args[0], &g);
	if (status != CLI_OK)
		return status;
	geometry_to_text(&g, &text);
	object = kvctl_parse_status(text.text ? text.text : "", '=');
	textbuf_free(&text);
	cJSON_DeleteItemFromObject(object, "token_bytes");
	add_sizes(object, &sizes);
	kvctl_print(object, '=', o.json);
	if (!o.json)
		print_padding(&sizes);
	return CLI_OK;
}

/*
 * The namespace above @dir: the topmost directory of the mount on the way whose .geometry shows the
 * lines that the daemon computes: only then it has accepted it. Below it a .geometry is an ordinary file; above it an incomplete one may lie.
 */
static bool find_geometry(const char *dir, char *found, struct geometry *g,
			  struct geometry_sizes *s)
{
	char at[PATH_MAX], path[PATH_MAX + 16];
	struct stat st;
	bool any = false;
	dev_t dev;

	snprintf(at, sizeof(at), "%s", dir);
	if (stat(at, &st))
		return false;
	for (dev = st.st_dev; !stat(at, &st) && st.st_dev == dev;) {
		struct textbuf text = TEXTBUF_INIT, why = TEXTBUF_INIT;
		struct geometry_sizes sizes;
		struct geometry one = {0};
		char *slash = strrchr(at, '/');

		snprintf(path, sizeof(path), "%s/.geometry", at);
		if (!mountroot_read_file(path, &text) && text.text &&
		    strstr(text.text, "block_stride=") &&
		    !geometry_parse(&one, text.text, &why) && !geometry_complete(&one, &sizes, &why)) {
			any = true;
			*g = one;
			*s = sizes;
			memcpy(found, at, sizeof(at));
		}
		textbuf_free(&text);
		textbuf_free(&why);
		if (!slash || !at[1])
			break;
		slash[slash == at ? 1 : 0] = '\0';
	}
	return any;
}

static int show_namespace(const char *dir, bool json)
{
	char full[PATH_MAX], found[PATH_MAX];
	struct textbuf text = TEXTBUF_INIT;
	struct geometry_sizes sizes;
	struct geometry g;
	cJSON *object, *keys;

	if (!realpath(dir, full)) {
		cli_error("%s: %s", dir, strerror(errno));
		return CLI_FAILED;
	}
	if (!find_geometry(full, found, &g, &sizes)) {
		cli_error("%s: in no namespace (no complete .geometry here or above); kvctl ns create "
			  "makes one", dir);
		return CLI_FAILED;
	}
	geometry_to_text(&g, &text);
	object = cJSON_CreateObject();
	cJSON_AddStringToObject(object, "namespace", found);
	keys = kvctl_parse_status(text.text ? text.text : "", '=');
	textbuf_free(&text);
	cJSON_DeleteItemFromObject(keys, "token_bytes");
	while (keys && keys->child) {
		cJSON *item = cJSON_DetachItemViaPointer(keys, keys->child);

		cJSON_AddItemToObject(object, item->string, item);
	}
	cJSON_Delete(keys);
	add_sizes(object, &sizes);
	kvctl_print(object, '=', json);
	return CLI_OK;
}

int kvctl_ns_show(int argc, char **argv)
{
	bool json = false;
	const struct cli_option options[] = {{"json", 'j', CLI_FLAG, &json, NULL, "print JSON"}};
	const struct cli_command command = {
		"kvctl ns show", "[--json] DIR",
		"Prints the namespace that DIR lies in: its geometry and what follows from it, in bytes.",
		options, ARRAY_SIZE(options), 1, 1};
	char **args;
	int status = cli_parse(&command, argc, argv, &args);

	if (status != CLI_OK)
		return status == CLI_DONE ? CLI_OK : status;
	return show_namespace(args[0], json);
}
