/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvc_control.h - requests that have no POSIX form, as text on `MOUNT/.kvc/control`.
 *
 * Problem: asking how much of a prompt is cached, forking in one step, moving a sequence between
 * tiers and emptying the prefix cache are not reads, writes or renames. They must still work from a
 * shell, from any language and for any user, without a library.
 *
 * Model: the file is a conversation. Open it O_RDWR, write one request, read one reply on the same
 * descriptor; then write the next request, or close. Every open has its own conversation. File
 * offsets mean nothing in either direction: writes are taken in the order in which they come, each
 * read returns the next part of the reply and 0 at its end.
 *
 *   $ exec 3<>/mnt/kv/.kvc/control; echo 'drop namespace=chat' >&3; cat <&3
 *   ok dropped_blocks=512 dropped_bytes=33554432
 *
 * Request: one line, at most KVC_CONTROL_LINE_MAX bytes with its newline:
 *
 *   VERB [ARGUMENT...] [key=value...] \n
 *
 * separated by single blanks. Arguments and values are escaped: a blank, a byte below it, a
 * backslash, an equals sign in a path and DEL are written \ooo (three octal digits). Paths are
 * relative to the mount's root, without a leading slash; the root itself is ".". A key that a verb
 * does not know is an error: nothing is ignored.
 *
 *   match NS_DIR [salt=S] tokens=N
 *           then 4*N bytes: the token ids, unsigned 32-bit little-endian, in as many further writes
 *           as wanted (at most KVC_CONTROL_WRITE_MAX bytes each; the line and the first ids may
 *           share a write, and a write may end inside an id). NS_DIR is a namespace or a directory
 *           in one, whose inherited salt applies unless salt= names another. Pins nothing, renews
 *           nothing.
 *           -> ok matched=N blocks=N dram=N nvme=N
 *           matched in tokens; of those blocks, how many have a copy in each tier (a block with
 *           two copies counts in both). Later versions add tiers.
 *   fork SRC DST [tokens=N]
 *           SRC is a sequence, DST a name in the same namespace and under the same salt that does
 *           not exist. Creates DST with `kv` and `tokens`, all or nothing; sealed blocks are shared,
 *           the open tail is copied; with tokens=N only the first N. SRC's other files are not
 *           copied.
 *           -> ok tokens=N shared_blocks=N copied_bytes=N
 *   prefetch PATH tier=T [wait=1]
 *           PATH is a sequence or any file. Queues copies of its blocks into tier T; with wait=1
 *           the reply comes when they are there (or can not come: then error).
 *           -> ok blocks=N bytes=N          (what had to move, or was queued to)
 *   demote PATH tier=T [wait=1]
 *           Makes sure that T holds a copy of each sealed block, then drops the copies above T.
 *           Open and pinned blocks stay where they are and count as busy.
 *           -> ok blocks=N bytes=N busy=N
 *   drop [namespace=NS] [tier=T]
 *           Empties the unnamed prefix cache (of one namespace; of one tier). What a name refers to
 *           stays. Needs the right to write NS, or for everything to own the mount's root.
 *           -> ok dropped_blocks=N dropped_bytes=N
 *
 * Reply: one line
 *
 *   ok [key=value...]\n
 *   error ERRNO_NAME text\n
 *
 * ERRNO_NAME is a name such as ENOENT; the text says which object and why and has no newline.
 * Readers skip keys that they do not know and accept newlines between pairs as well as blanks.
 *
 * When: the request runs at the first read after it is complete, as the caller of that read and
 * with that caller's permissions. A read before that (no newline yet, ids missing) answers
 * "error EINVAL ...". Malformed requests are told in the reply, not by write(2), which fails only
 * with EMSGSIZE (line or write too long), EFBIG (more ids than announced, or more than
 * KVC_CONTROL_TOKENS_MAX) and EBUSY (the last reply has not been read to its end). After an error
 * reply the conversation starts afresh. A read that waits (wait=1) can be interrupted by a signal;
 * what was queued goes on.
 *
 * What it is not: fast. Engines use a session (kvc.h); this is for operators and scripts.
 */
#ifndef KVC_CONTROL_H
#define KVC_CONTROL_H

/* Below the root of the mount. */
#define KVC_CONTROL_PATH ".kvc/control"

#define KVC_CONTROL_LINE_MAX   32768	    /* bytes of a request line, newline included */
#define KVC_CONTROL_WRITE_MAX  (1u << 20)   /* bytes of one write */
#define KVC_CONTROL_TOKENS_MAX (16u << 20)  /* ids in one match */
#define KVC_CONTROL_REPLY_MAX  4096	    /* bytes of a reply, newline included */

#define KVC_CONTROL_OK	  "ok"
#define KVC_CONTROL_ERROR "error"

#define KVC_CONTROL_MATCH    "match"
#define KVC_CONTROL_FORK     "fork"
#define KVC_CONTROL_PREFETCH "prefetch"
#define KVC_CONTROL_DEMOTE   "demote"
#define KVC_CONTROL_DROP     "drop"

#endif
