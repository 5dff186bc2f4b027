/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fs/ keeps on disk: the superblock file and the records in the metadata store. Little-endian,
 * packed; the metadata store covers records with checksums, so what is checked at load is meaning.
 *
 * One record per inode holds everything about it, its names included, so that a rename is one
 * record:
 *
 *   fs_inode_record | links: fs_link_record + name | xattrs: fs_xattr_record + name + value
 *                   | geometry text, inline bytes or symlink target
 */
#ifndef KVC_FS_FS_FORMAT_H
#define KVC_FS_FS_FORMAT_H

#include "allocator/base/compiler.h"

#define FS_SUPER_NAME  "superblock"
#define FS_SUPER_MAGIC "kvcachefs store\n" /* 16 bytes, no NUL */
#define FS_SUPER_BYTES 4096
#define FS_FORMAT      1u

/** struct fs_super - the superblock file, FS_SUPER_BYTES with zeros behind. */
struct fs_super {
	char magic[16];
	u32 format;
	u32 ready; /* 0 while the store is being made: nothing of value in it yet */
	u8 uuid[16];
	u64 nvme_bytes;
	u64 nvme_file_bytes; /* size of a full data file */
	u64 created_ns;	     /* since 1970 */
	u64 csum;	     /* XXH3-64 of the bytes before it */
} __attribute__((packed));

enum { META_FS_INODE = 32, META_FS_COUNTERS = 33 };

#define FS_INODE_RECORD_VERSION 1
#define FS_MAX_INODE_RECORD	(3u << 19) /* bytes; leaves room below META_MAX_RECORD */

enum fs_record_flags {
	FS_RECORD_NAMESPACE = 1 << 0, /* directory is a namespace's own: geometry text follows */
};

struct fs_inode_record {
	u8 version;
	u8 kind;   /* enum inode_kind */
	u16 flags; /* enum fs_record_flags */
	u32 mode, uid, gid;
	int64_t atime_ns, mtime_ns, ctime_ns;
	u64 size;  /* plain files: bytes */
	u64 ref;   /* KV, ids: sequence number; special files: device number */
	u32 space; /* namespaces: number */
	u32 nr_links, nr_xattrs;
	u32 geometry_bytes, inline_bytes;
} __attribute__((packed));

struct fs_link_record {
	u64 parent, cookie;
	u8 len;
} __attribute__((packed));

struct fs_xattr_record {
	u32 bytes;
	u8 name_len;
	u8 hidden;
} __attribute__((packed));

/* Numbers that must never be given twice, under key {0, 0, META_FS_COUNTERS}. */
struct fs_counters_record {
	u32 version;
	u32 next_space;
	u64 next_seq_id;
	u64 next_ino[8]; /* by enum inode_kind */
} __attribute__((packed));

#endif
