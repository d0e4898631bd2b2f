"""What other users own, or can change, is refused."""

import os
import stat

import pytest

from helpers.runtime.own import below, cache_folder, check_own


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o400, 0o755])
def test_what_only_this_user_can_change_is_fine(file, mode):
    file.chmod(mode)
    check_own([file])


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_what_others_can_write_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(PermissionError) as caught:
        check_own([file.parent, file], "Or ask for help.")
    assert str(caught.value) == (
        f"{file} can be written by other users, so this user's programs do not read it. "
        f"If only you have written it: chmod -R go-w {file}. Or ask for help."
    )


def test_the_target_of_a_link_counts(file, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(file)
    check_own([link])
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="link can be written"):
        check_own([link])


def test_of_others_only_root_is_trusted(file, monkeypatch):
    me = file.stat().st_uid
    real = os.stat

    def owned_by(uid):
        def changed(path):
            fields = list(real(path))
            fields[stat.ST_UID] = uid
            return os.stat_result(fields)

        return changed

    monkeypatch.setattr(os, "stat", owned_by(0))
    check_own([file])
    monkeypatch.setattr(os, "stat", owned_by(me + 7))
    with pytest.raises(PermissionError, match=r"belongs to another user.* Use a file of your own"):
        check_own([file])


def test_below_is_all_of_a_tree(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("")
    found = {str(path.relative_to(tmp_path)) for path in below(tmp_path)}
    assert found == {".", "a", "a/b", "a/b/c"}


def test_a_relative_cache_home_does_not_count(tmp_path, monkeypatch):
    """As its specification has it; else each working folder would have a cache."""
    monkeypatch.delenv("HELPERS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "training-at-scale"
