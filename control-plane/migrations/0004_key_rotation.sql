-- The life of a signing key. It is published, signs from one instant until another, and is removed when the last
-- token that it signed is dead, or at once if it is revoked.

ALTER TABLE signing_keys RENAME TO signing_keys_before;

CREATE TABLE signing_keys (
  kid TEXT PRIMARY KEY,
  public_point TEXT NOT NULL,
  -- Absent once the key is removed: nobody needs it again.
  sealed_private TEXT,
  published_at BIGINT NOT NULL,
  -- From when it signs; absent for the next key as long as no rotation is asked for.
  signs_from BIGINT,
  -- From when another signs.
  retires_at BIGINT,
  -- The longest life that a token under it may have, in microseconds.
  token_life BIGINT NOT NULL,
  removed_at BIGINT,
  -- Set besides removed_at, if somebody revoked it.
  revoked_at BIGINT
);

-- Until now there was one key, which signed from the beginning of time, and nobody noted how long its tokens live.
INSERT INTO signing_keys (kid, public_point, sealed_private, published_at, signs_from, token_life, removed_at)
SELECT kid, public_point, sealed_private, published_at, published_at, 0, removed_at FROM signing_keys_before;

DROP TABLE signing_keys_before;
