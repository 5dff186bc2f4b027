/* SPDX-License-Identifier: Apache-2.0 */
/* Trust domains: who shares DRAM's slabs with whom, how they change hands, what clients can do to them. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "allocator/base/clock.h"
#include "lib/pool_fixture.h"
#include "lib/test.h"

#define DRAM  MIB(32)	/* in slabs of 8 MiB */
#define SLABS 4u
#define BYTES 65536u
#define MANY  512u	/* blocks that fill DRAM */

static void own(struct pool_fixture *fx, u32 space, u32 uid)
{
	struct pool_owner owner = {uid, uid, 0700};

	assert_int_equal(pool_set_space_owner(fx->pool, space, &owner), 0);
}

static void fill(struct pool_fixture *fx, u32 space, u32 nr, struct block_id *ids)
{
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_block(fx, BYTES, space, space * 10000 + i, &ids[i]), 0);
}

static void holds(struct pool_fixture *fx, u32 space, u32 nr, const struct block_id *ids)
{
	for (u32 i = 0; i < nr; i++)
		assert_int_equal(pool_fixture_holds(fx, ids[i], space * 10000 + i), 1);
}

static struct pool_place hold(struct pool_fixture *fx, struct block_id id)
{
	struct pool_place place;

	assert_int_equal(pool_hold(fx->pool, &id, 1, &place), 0);
	return place;
}

/* Each of a namespace's blocks, as a client would come to see them. */
static void at_home(struct pool_fixture *fx, u32 space, u32 nr, const struct block_id *ids)
{
	for (u32 i = 0; i < nr; i++) {
		struct pool_place place = hold(fx, ids[i]);

		assert_int_equal(pool_file_domain(fx->pool, place.file),
				 pool_space_domain(fx->pool, space));
		assert_true(place.off + BYTES <= pool_file_bytes(fx->pool));
		pool_unhold(fx->pool, &ids[i], 1);
	}
}

static u32 slabs_of(struct pool_fixture *fx, u32 space)
{
	u32 nr = 0;

	for (u32 f = 0; f < pool_nr_files(fx->pool); f++)
		nr += pool_file_domain(fx->pool, f) == pool_space_domain(fx->pool, space);
	return nr;
}

static char *map(struct pool_fixture *fx, u32 file, bool writable)
{
	int fd = pool_file_fd(fx->pool, file, writable);
	char *addr;

	assert_true(fd >= 0);
	addr = mmap(NULL, pool_file_bytes(fx->pool), writable ? PROT_READ | PROT_WRITE : PROT_READ,
		    MAP_SHARED, fd, 0);
	assert_ptr_not_equal(addr, MAP_FAILED);
	close(fd);
	return addr;
}

static void unmap(struct pool_fixture *fx, char *addr)
{
	munmap(addr, pool_file_bytes(fx->pool));
}

static void plain_files_alone_see_no_slabs(void **state)
{
	struct block_id ids[MANY];
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, 0);
	assert_int_equal(pool_file_bytes(fx.pool), DRAM / SLABS);
	fill(&fx, 0, MANY, ids);
	holds(&fx, 0, MANY, ids);
	assert_int_equal(pool_nr_files(fx.pool), SLABS);
	for (u32 f = 0; f < SLABS; f++) {
		assert_int_equal(pool_file_domain(fx.pool, f), 0);
		assert_int_equal(pool_file_fd(fx.pool, f, false), -ENOENT);
	}
	pool_check(fx.pool);
	pool_put(fx.pool, ids, MANY);
	pool_fixture_close(&fx);
}

/* A namespace without plain files beside it has all of DRAM, without a store too. */
static void one_owner_may_have_everything(void **state)
{
	struct block_id ids[MANY];
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, 0);
	own(&fx, 1, 7);
	own(&fx, 2, 7);
	assert_int_equal(pool_space_domain(fx.pool, 1), pool_space_domain(fx.pool, 2));
	fill(&fx, 1, MANY / 2, ids);
	fill(&fx, 2, MANY / 2, ids + MANY / 2);
	holds(&fx, 1, MANY / 2, ids);
	holds(&fx, 2, MANY / 2, ids + MANY / 2);
	at_home(&fx, 1, MANY / 2, ids);
	assert_int_equal(slabs_of(&fx, 1), SLABS);
	pool_check(fx.pool);
	pool_put(fx.pool, ids, MANY);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void owners_never_share_a_slab(void **state)
{
	enum { NR = 200 };
	struct block_id ids[4][NR];
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, MIB(128));
	for (u32 space = 1; space < 4; space++)
		own(&fx, space, space);
	for (u32 i = 0; i < NR; i++)
		for (u32 space = 0; space < 4; space++)
			assert_int_equal(pool_fixture_block(&fx, BYTES, space, space * 10000 + i,
							    &ids[space][i]),
					 0);
	for (u32 space = 0; space < 4; space++)
		holds(&fx, space, NR, ids[space]);
	for (u32 space = 1; space < 4; space++) {
		at_home(&fx, space, NR, ids[space]);
		assert_true(slabs_of(&fx, space) > 0);
		assert_int_not_equal(pool_space_domain(fx.pool, space), 0);
	}
	pool_check(fx.pool);
	for (u32 space = 0; space < 4; space++)
		pool_put(fx.pool, ids[space], NR);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Same owner, other permissions: other clients. */
static void permissions_part_domains(void **state)
{
	struct pool_owner closed = {5, 5, 0700}, open = {5, 5, 0755};
	struct pool_fixture fx;

	pool_fixture_open(&fx, DRAM, 0);
	assert_int_equal(pool_set_space_owner(fx.pool, 1, &closed), 0);
	assert_int_equal(pool_set_space_owner(fx.pool, 9, &open), 0);
	assert_int_equal(pool_set_space_owner(fx.pool, 4, &closed), 0);
	assert_int_not_equal(pool_space_domain(fx.pool, 1), pool_space_domain(fx.pool, 9));
	assert_int_equal(pool_space_domain(fx.pool, 1), pool_space_domain(fx.pool, 4));
	assert_int_equal(pool_space_domain(fx.pool, 2), 0);
	prefix_drop_space(fx.pool, 4);
	assert_int_equal(pool_space_domain(fx.pool, 4), 0);
	assert_int_not_equal(pool_space_domain(fx.pool, 9), 0);
	pool_fixture_close(&fx);
}

/* What one owner left free another gets, but neither old bytes nor a way in for the old one. */
static void an_empty_slab_changes_hands_clean(void **state)
{
	struct block_id ids[MANY], first;
	struct pool_fixture fx;
	struct pool_place place;
	char *old;

	pool_fixture_open_files(&fx, DRAM, 0);
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 1, MANY, ids);
	place = hold(&fx, ids[0]);
	old = map(&fx, place.file, true);
	pool_unhold(fx.pool, ids, 1);
	assert_int_not_equal(old[place.off + 8], 0);
	pool_put(fx.pool, ids, MANY);
	/* Who had blocks keeps a slab. */
	fill(&fx, 2, MANY - MANY / SLABS, ids);
	holds(&fx, 2, MANY - MANY / SLABS, ids);
	assert_int_equal(slabs_of(&fx, 2), SLABS - 1);
	if (!pool_file_domain(fx.pool, place.file)) {
		for (u64 i = 0; i < pool_file_bytes(fx.pool); i += 8)
			assert_int_equal(*(u64 *)(old + i), 0);
		memset(old, 0x55, pool_file_bytes(fx.pool));
		assert_int_equal(pool_file_fd(fx.pool, place.file, false), -ENOENT);
	}
	holds(&fx, 2, MANY - MANY / SLABS, ids);
	assert_int_equal(pool_fixture_block(&fx, BYTES, 1, 1, &first), 0);
	pool_check(fx.pool);
	unmap(&fx, old);
	pool_put(fx.pool, &first, 1);
	pool_put(fx.pool, ids, MANY - MANY / SLABS);
	pool_fixture_close(&fx);
}

static void nothing_of_the_old_owner_is_left(void **state)
{
	struct block_id ids[MANY], id;
	struct pool_want want = {.bytes = BYTES, .space = 2, .near = BLOCK_NONE};
	struct pool_fixture fx;
	struct pool_place place;
	char *addr;

	pool_fixture_open_files(&fx, DRAM, 0);
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 1, MANY, ids);
	pool_put(fx.pool, ids, MANY);
	assert_int_equal(pool_alloc(fx.pool, &want, 1, &id), 0);
	place = hold(&fx, id);
	addr = map(&fx, place.file, false);
	for (u64 i = 0; i < pool_file_bytes(fx.pool); i += 8)
		assert_int_equal(*(u64 *)(addr + i), 0);
	unmap(&fx, addr);
	pool_unhold(fx.pool, &id, 1);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

/* The cold blocks of one owner make room for the hot ones of another, and come back. */
static void cold_blocks_make_room_for_others(void **state)
{
	struct block_id cold[MANY], hot[MANY];
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, MIB(128));
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 1, MANY, cold);
	assert_true(slabs_of(&fx, 1) >= SLABS - 1);
	fill(&fx, 2, MANY * 2 / 3, hot);
	assert_int_equal(pool_seal(fx.pool, hot, MANY * 2 / 3), 0);
	holds(&fx, 2, MANY * 2 / 3, hot);
	assert_true(slabs_of(&fx, 2) >= SLABS / 2);
	assert_true(slabs_of(&fx, 1) >= 1);
	holds(&fx, 1, MANY, cold);
	holds(&fx, 2, MANY * 2 / 3, hot);
	at_home(&fx, 1, MANY, cold);
	pool_check(fx.pool);
	pool_put(fx.pool, cold, MANY);
	pool_put(fx.pool, hot, MANY * 2 / 3);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Free room lies scattered in another's slabs; without a store it can only be got by moving. */
static void scattered_room_is_gathered_for_others(void **state)
{
	struct block_id a[MANY], b[MANY];
	struct pool_fixture fx;
	struct pool_stats s;
	u32 kept = 0;

	pool_fixture_open_files(&fx, DRAM, 0);
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 1, MANY, a);
	for (u32 i = 0; i < MANY; i++) {
		if (i % 4)
			pool_put(fx.pool, &a[i], 1);
		else
			kept++;
	}
	fill(&fx, 2, MANY / 2, b);
	pool_get_stats(fx.pool, &s);
	assert_true(s.moved > 0);
	holds(&fx, 2, MANY / 2, b);
	for (u32 i = 0; i < MANY; i += 4)
		assert_int_equal(pool_fixture_holds(&fx, a[i], 10000 + i), 1);
	assert_int_equal(slabs_of(&fx, 2), SLABS / 2);
	pool_check(fx.pool);
	for (u32 i = 0; i < MANY; i += 4)
		pool_put(fx.pool, &a[i], 1);
	pool_put(fx.pool, b, MANY / 2);
	assert_int_equal(kept, MANY / 4);
	pool_fixture_close(&fx);
}

/* One owner's mappings stay where they are, and leave the others something to work with. */
static void held_blocks_are_neither_moved_nor_in_the_way(void **state)
{
	enum { HELD = MANY / 2 };
	struct block_id a[HELD], b[MANY], plain[MANY];
	struct pool_place before[HELD], after;
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, MIB(128));
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 0, 1, plain);
	fill(&fx, 2, 1, b);
	fill(&fx, 1, HELD, a);
	assert_int_equal(pool_hold(fx.pool, a, HELD, before), 0);
	fill(&fx, 2, MANY - 1, b + 1);
	fill(&fx, 0, MANY - 1, plain + 1);
	for (u32 i = 0; i < MANY - 1; i++) {
		assert_int_equal(pool_fixture_holds(&fx, b[i + 1], 20000 + i), 1);
		assert_int_equal(pool_fixture_holds(&fx, plain[i + 1], i), 1);
	}
	for (u32 i = 0; i < HELD; i++) {
		after = hold(&fx, a[i]);
		assert_int_equal(after.file, before[i].file);
		assert_int_equal(after.off, before[i].off);
		pool_unhold(fx.pool, &a[i], 1);
	}
	pool_unhold(fx.pool, a, HELD);
	holds(&fx, 1, HELD, a);
	pool_check(fx.pool);
	pool_put(fx.pool, a, HELD);
	pool_put(fx.pool, b, MANY);
	pool_put(fx.pool, plain, MANY);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Mappings all over DRAM, and still each owner has something to work with. */
static void scattered_pins_leave_everybody_a_slab(void **state)
{
	struct block_id a[MANY], b[MANY];
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, DRAM, MIB(128));
	own(&fx, 1, 1);
	own(&fx, 2, 2);
	fill(&fx, 2, 1, b);
	fill(&fx, 1, MANY, a);
	for (u32 i = 0; i < MANY; i += 2)
		hold(&fx, a[i]);
	assert_int_equal(slabs_of(&fx, 2), 1);
	fill(&fx, 2, MANY, b);
	holds(&fx, 2, MANY, b);
	for (u32 i = 0; i < MANY; i += 2)
		pool_unhold(fx.pool, &a[i], 1);
	holds(&fx, 1, MANY, a);
	pool_check(fx.pool);
	pool_put(fx.pool, a, MANY);
	pool_fixture_close(&fx);
}

/* Who comes when something is mapped in every slab: his blocks are there at once, and move home later. */
static void who_comes_late_is_a_guest(void **state)
{
	struct block_id plain, first[MANY], late[8];
	struct pool_fixture fx;
	struct pool_place place;
	u32 nr = 0, held = 0;
	u64 start;

	pool_fixture_open_files(&fx, DRAM, MIB(128));
	own(&fx, 1, 1);
	fill(&fx, 0, 1, &plain); /* so that plain files have a slab */
	fill(&fx, 1, MANY, first);
	assert_int_equal(pool_writeback(fx.pool, first, MANY), 0);
	for (u32 seen = 0; nr < MANY; nr++) { /* one in each of his slabs */
		if (pool_try_hold(fx.pool, &first[nr], 1, &place))
			continue;
		if (seen & 1u << place.file)
			pool_unhold(fx.pool, &first[nr], 1);
		else
			first[held++] = first[nr];
		seen |= 1u << place.file;
	}
	assert_int_equal(held, slabs_of(&fx, 1));
	assert_int_equal(held, SLABS - 1);
	own(&fx, 2, 2);
	start = clock_mono_ns();
	fill(&fx, 2, ARRAY_SIZE(late), late);
	holds(&fx, 2, ARRAY_SIZE(late), late);
	assert_true(clock_mono_ns() - start < 5000000000ull);
	assert_int_equal(slabs_of(&fx, 2), 0);
	assert_int_equal(pool_hold(fx.pool, late, 1, &place), -EAGAIN);
	pool_check(fx.pool);
	pool_unhold(fx.pool, first, held);
	at_home(&fx, 2, ARRAY_SIZE(late), late);
	holds(&fx, 2, ARRAY_SIZE(late), late);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void large_blocks_stay_in_one_file(void **state)
{
	enum { NR = 24, LARGE = 6 << 20 };
	struct pool_want want = {.bytes = LARGE, .space = 1, .near = BLOCK_NONE};
	struct block_id ids[NR];
	struct pool_place place;
	struct pool_fixture fx;

	pool_fixture_open_files(&fx, MIB(128), MIB(256)); /* slabs of 32 MiB */
	own(&fx, 1, 1);
	for (u32 i = 0; i < NR; i++) {
		assert_int_equal(pool_alloc(fx.pool, &want, 1, &ids[i]), 0);
		want.near = ids[i];
		assert_int_equal(pool_hold(fx.pool, &ids[i], 1, &place), 0);
		assert_true(place.off + LARGE <= pool_file_bytes(fx.pool));
		pool_unhold(fx.pool, &ids[i], 1);
	}
	pool_check(fx.pool);
	pool_put(fx.pool, ids, NR);
	/* One that is larger than a file can be had, but not mapped. */
	want = (struct pool_want){.bytes = MIB(40), .space = 1, .near = BLOCK_NONE};
	assert_int_equal(pool_alloc(fx.pool, &want, 1, ids), 0);
	assert_int_equal(pool_hold(fx.pool, ids, 1, &place), -EOPNOTSUPP);
	pool_put(fx.pool, ids, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* Blocks that a namespace's former owner may see are brought where he may not. */
static void check_new_owner(u64 nvme_bytes)
{
	enum { NR = 16 };
	struct block_id ids[NR], empty;
	struct pool_want want = {.bytes = BYTES, .space = 1, .near = BLOCK_NONE};
	struct pool_place place;
	struct pool_fixture fx;
	const void *addr;
	u32 before;

	pool_fixture_open_files(&fx, DRAM, nvme_bytes);
	own(&fx, 1, 1);
	fill(&fx, 1, NR, ids);
	assert_int_equal(pool_alloc(fx.pool, &want, 1, &empty), 0);
	before = pool_space_domain(fx.pool, 1);
	own(&fx, 1, 2);
	assert_int_not_equal(pool_space_domain(fx.pool, 1), before);
	assert_int_equal(pool_pin(fx.pool, ids[0], &addr), 0);
	assert_int_equal(pool_hold(fx.pool, ids, NR, (struct pool_place[NR]){{0}}), -EAGAIN);
	pool_unpin(fx.pool, ids, 1);
	at_home(&fx, 1, NR, ids);
	holds(&fx, 1, NR, ids);
	place = hold(&fx, empty);
	assert_int_equal(pool_file_domain(fx.pool, place.file), pool_space_domain(fx.pool, 1));
	pool_unhold(fx.pool, &empty, 1);
	pool_check(fx.pool);
	pool_put(fx.pool, ids, NR);
	pool_put(fx.pool, &empty, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void a_new_owner_gets_his_blocks_elsewhere(void **state)
{
	check_new_owner(MIB(64));
}

static void without_a_store_too(void **state)
{
	check_new_owner(0);
}

/* Nobody asks for them: what lies where others look is gone from there all the same. */
static void check_bring_home(u64 nvme_bytes)
{
	enum { NR = 40 };
	struct block_id ids[NR], other[NR];
	struct pool_place places[NR];
	struct pool_fixture fx;
	const void *addr;

	pool_fixture_open_files(&fx, DRAM, nvme_bytes);
	own(&fx, 1, 1);
	own(&fx, 2, 1);
	fill(&fx, 1, NR, ids);
	fill(&fx, 2, NR, other);
	own(&fx, 1, 3);
	assert_int_equal(pool_try_hold(fx.pool, ids + 1, NR - 1, places), -EAGAIN);
	assert_int_equal(pool_pin(fx.pool, ids[0], &addr), 0);
	pool_bring_home(fx.pool, 1);
	assert_int_equal(pool_try_hold(fx.pool, ids + 1, NR - 1, places), 0);
	for (u32 i = 0; i < NR - 1; i++)
		assert_int_equal(pool_file_domain(fx.pool, places[i].file),
				 pool_space_domain(fx.pool, 1));
	pool_unhold(fx.pool, ids + 1, NR - 1);
	assert_int_equal(pool_try_hold(fx.pool, ids, 1, places), -EAGAIN);
	pool_unpin(fx.pool, ids, 1);
	assert_int_equal(pool_try_hold(fx.pool, other, NR, places), 0); /* as they were */
	pool_unhold(fx.pool, other, NR);
	holds(&fx, 1, NR, ids);
	holds(&fx, 2, NR, other);
	pool_check(fx.pool);
	pool_put(fx.pool, ids, NR);
	pool_put(fx.pool, other, NR);
	pool_fixture_close(&fx);
}

static void blocks_leave_where_others_look(void **state)
{
	check_bring_home(MIB(64));
	check_bring_home(0);
}

/* ---- what clients can do ---- */

static int try_as_nobody(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (setuid(65534))
		return 2;
	return open(path, O_RDWR) >= 0;
}

static void readers_cannot_write(void **state)
{
	struct pool_fixture fx;
	struct pool_place place;
	struct block_id id;
	struct stat st;
	int fd, status;
	pid_t pid;

	pool_fixture_open_files(&fx, DRAM, 0);
	own(&fx, 1, 1);
	fill(&fx, 1, 1, &id);
	place = hold(&fx, id);
	fd = pool_file_fd(fx.pool, place.file, false);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(errno, EACCES);
	assert_int_equal(write(fd, "x", 1), -1);
	assert_int_equal(ftruncate(fd, 0), -1);
	if (!getuid()) {
		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			_exit(try_as_nobody(fd));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	close(fd);
	pool_unhold(fx.pool, &id, 1);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

/* Sealed, and a client writes over it all the same. @saved: there is a copy below already. */
static void scribble(struct pool_fixture *fx, bool saved, struct block_id *id)
{
	struct pool_place place;
	char *addr;

	fill(fx, 1, 1, id);
	assert_int_equal(pool_seal(fx->pool, id, 1), 0);
	if (saved)
		assert_int_equal(pool_writeback(fx->pool, id, 1), 0);
	place = hold(fx, *id);
	addr = map(fx, place.file, true);
	addr[place.off + BYTES / 2] ^= 1;
	unmap(fx, addr);
	pool_unhold(fx->pool, id, 1);
}

static void a_scribbled_block_does_not_leave_dram(void **state)
{
	struct pool_fixture fx;
	struct pool_stats s;
	struct block_id id;
	const void *addr;

	pool_fixture_open_files(&fx, DRAM, MIB(64));
	own(&fx, 1, 1);
	scribble(&fx, false, &id);
	assert_int_equal(pool_writeback(fx.pool, &id, 1), -EIO);
	pool_get_stats(fx.pool, &s);
	assert_int_equal(s.checksum_errors, 1);
	assert_int_equal(pool_pin(fx.pool, id, &addr), -EIO);
	assert_int_equal(pool_writeback(fx.pool, &id, 1), -EIO);
	pool_check(fx.pool);
	pool_put(fx.pool, &id, 1);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

static void nor_does_it_harm_the_copy_below(void **state)
{
	struct pool_fixture fx;
	struct block_id id;

	pool_fixture_open_files(&fx, DRAM, MIB(64));
	own(&fx, 1, 1);
	scribble(&fx, true, &id);
	assert_int_equal(pool_demote(fx.pool, &id, 1), 0);
	holds(&fx, 1, 1, &id);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

/* Bytes that a client fills in are final at the seal, not before. */
static void what_is_filled_in_place_is_sealed_as_it_is_then(void **state)
{
	struct pool_fixture fx;
	struct pool_place place;
	struct block_id id;
	char *addr;
	const void *seen;

	pool_fixture_open_files(&fx, DRAM, MIB(64));
	own(&fx, 1, 1);
	fill(&fx, 1, 1, &id);
	assert_int_equal(pool_writeback(fx.pool, &id, 1), 0); /* spilled while open */
	place = hold(&fx, id);
	assert_int_equal(pool_fill_begin(fx.pool, &id, 1), 0);
	addr = map(&fx, place.file, true);
	memset(addr + place.off, 0x21, BYTES);
	assert_int_equal(pool_writeback(fx.pool, &id, 1), 0);
	memset(addr + place.off, 0x42, BYTES);
	assert_int_equal(pool_seal(fx.pool, &id, 1), 0);
	pool_unhold(fx.pool, &id, 1);
	unmap(&fx, addr);
	assert_int_equal(pool_demote(fx.pool, &id, 1), 0);
	assert_int_equal(pool_pin(fx.pool, id, &seen), 0);
	for (u32 i = 0; i < BYTES; i++)
		assert_int_equal(((const u8 *)seen)[i], 0x42);
	pool_unpin(fx.pool, &id, 1);
	pool_check(fx.pool);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

static void too_many_owners_are_told(void **state)
{
	struct pool_fixture fx;
	u32 space = 1;
	int err = 0;

	pool_fixture_open(&fx, MIB(4), 0);
	for (; !err && space < 5000; space++) {
		struct pool_owner owner = {space, 0, 0700};

		err = pool_set_space_owner(fx.pool, space, &owner);
	}
	assert_int_equal(err, -ENOSPC);
	assert_int_equal(pool_space_domain(fx.pool, space - 1), 0);
	assert_int_not_equal(pool_space_domain(fx.pool, space - 2), 0);
	pool_check(fx.pool);
	pool_fixture_close(&fx);
}

/* A namespace whose permissions change again and again takes nothing from others. */
static void owners_that_are_gone_do_not_count(void **state)
{
	struct pool_fixture fx;
	struct block_id id;
	u32 before = 0;

	pool_fixture_open(&fx, DRAM, 0);
	for (u32 i = 0; i < 3000; i++) {
		struct pool_owner owner = {1, 1, i};

		assert_int_equal(pool_set_space_owner(fx.pool, 1, &owner), 0);
		assert_int_not_equal(pool_space_domain(fx.pool, 1), before);
		before = pool_space_domain(fx.pool, 1);
	}
	own(&fx, 2, 2);
	assert_int_equal(pool_fixture_block(&fx, BYTES, 2, 1, &id), 0);
	pool_check(fx.pool);
	pool_put(fx.pool, &id, 1);
	pool_fixture_close(&fx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_files_alone_see_no_slabs),
		cmocka_unit_test(one_owner_may_have_everything),
		cmocka_unit_test(owners_never_share_a_slab),
		cmocka_unit_test(permissions_part_domains),
		cmocka_unit_test(an_empty_slab_changes_hands_clean),
		cmocka_unit_test(nothing_of_the_old_owner_is_left),
		cmocka_unit_test(cold_blocks_make_room_for_others),
		cmocka_unit_test(scattered_room_is_gathered_for_others),
		cmocka_unit_test(held_blocks_are_neither_moved_nor_in_the_way),
		cmocka_unit_test(scattered_pins_leave_everybody_a_slab),
		cmocka_unit_test(who_comes_late_is_a_guest),
		cmocka_unit_test(large_blocks_stay_in_one_file),
		cmocka_unit_test(a_new_owner_gets_his_blocks_elsewhere),
		cmocka_unit_test(blocks_leave_where_others_look),
		cmocka_unit_test(without_a_store_too),
		cmocka_unit_test(readers_cannot_write),
		cmocka_unit_test(a_scribbled_block_does_not_leave_dram),
		cmocka_unit_test(nor_does_it_harm_the_copy_below),
		cmocka_unit_test(what_is_filled_in_place_is_sealed_as_it_is_then),
		cmocka_unit_test(too_many_owners_are_told),
		cmocka_unit_test(owners_that_are_gone_do_not_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
