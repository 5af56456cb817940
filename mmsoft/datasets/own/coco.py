"""COCO JSON of any names, in one file or several."""

from collections.abc import Mapping
from typing import Any

from mmsoft.datasets.annotations import is_mask

from .found import Faults, Found, Object, Picture, Place, folder_part, numbers, part_of, tally
from .tree import Tree


def read_coco(tree: Tree) -> Found | None:
    files = {name: content for name, content in tree.json.items() if _is_coco(content)}
    if not files:
        return None
    whole = {name: content for name, content in files.items() if not _is_of_points(content)}
    files = whole or files  # COCO lists its persons twice
    found = Found('COCO JSON', tree.root, [], [])
    parts = {name: part_of(name) for name in files}
    unknown = [name for name, part in parts.items() if part is None]
    if unknown and len(unknown) < len(files):
        tree.faults.add(
            tree.root / unknown[0],
            'other files of annotations are for training, validation or testing by their names: '
            'say so of this one as well, or move it away',
        )
    ids = [_File(tree, name, content, found, parts[name]).read() for name, content in files.items()]
    _keep_ids(found, {pair for of_file in ids for pair in of_file.items()})
    listed = {picture.path for picture in found.pictures}
    spare = [name for name in tree.pictures if name not in listed]
    if spare:
        found.remarks.append(tally('pictures in no annotation file', spare, 'not used'))
    return found


def _is_coco(content: Mapping[str, Any]) -> bool:
    """Of boxes or masks: captions and key points alone are left aside."""
    lists = [content.get(key) for key in ('images', 'annotations', 'categories')]
    if not all(isinstance(entries, list) for entries in lists):
        return False
    entries = [entry for entry in lists[1][:100] if isinstance(entry, dict)]
    return not entries or any('bbox' in entry or 'segmentation' in entry for entry in entries)


def _keep_ids(found: Found, ids: set[tuple[str, Any]]) -> None:
    """Pairs of a class and its id, if they go both ways and are whole numbers, as results have them."""
    of_class = dict(ids)
    if len(ids) == len(of_class) == len(set(of_class.values())) and all(type(number) is int for _, number in ids):
        found.ids = of_class
    else:
        found.remarks.append('ids of classes are no whole numbers, or differ from file to file: results count from 1')


def _is_of_points(content: Mapping[str, Any]) -> bool:
    return any(isinstance(entry, Mapping) and 'keypoints' in entry for entry in content['categories'])


class _File:
    """Reads one file into what was found so far."""

    def __init__(self, tree: Tree, name: str, content: Mapping[str, Any], found: Found, part: str | None) -> None:
        self.tree, self.name, self.content, self.found, self.part = tree, name, content, found, part
        self.faults: Faults = tree.faults

    def _place(self, key: str, index: int) -> Place:
        return Place(self.tree.root / self.name, entry=(key, index))

    def read(self) -> dict[str, Any]:
        """Its classes: name -> id, the first where two have one name."""
        names, pictures = self._categories(), self._images()
        for index, entry in enumerate(self.content['annotations']):
            place = self._place('annotations', index)
            if not isinstance(entry, Mapping):
                self.faults.add(place, f'an annotation has image_id, category_id and bbox; this is {entry!r:.40}')
                continue
            try:
                for key, known in (('image_id', pictures), ('category_id', names)):
                    if entry.get(key) not in known:
                        raise ValueError(f'its {key} is {entry.get(key)!r}, which is not listed')
                if (picture := pictures[entry['image_id']]) is not None:
                    picture.objects.append(_object(entry, names, place, picture.size))
            except (TypeError, ValueError) as error:
                self.faults.add(place, f'annotation {entry.get("id")}: {error}')
        return {name: number for number, name in reversed(names.items())}

    def _categories(self) -> dict[Any, str]:
        """Id -> name. Two of one name become one class: mmdet would count them as two, and mix up all that follow."""
        names = {}
        for index, entry in enumerate(self.content['categories']):
            try:
                number, name = entry['id'], str(entry['name']).strip()
            except (KeyError, TypeError):
                self.faults.add(self._place('categories', index), 'a category needs an id and a name')
                continue
            if number in names and names[number] != name:
                place = self._place('categories', index)
                self.faults.add(place, f'the id {number!r} is of two categories, {names[number]!r} and {name!r}')
            if name in names.values() and number not in names:
                same = next(other for other, known in names.items() if known == name)
                self.found.remarks.append(
                    f'{self._place("categories", index)}: two classes are called {name!r}, with the ids {same!r} and '
                    f'{number!r}: they are taken as one'
                )
            names[number] = name
        for _, name in sorted(names.items(), key=lambda item: str(item[0]).zfill(9)):
            if name not in self.found.classes:
                self.found.classes.append(name)
        return names

    def _images(self) -> dict[Any, Picture | None]:
        """Id -> picture; None where it has a fault."""
        pictures, used = {}, {}
        for index, entry in enumerate(self.content['images']):
            place = self._place('images', index)
            try:
                number, wanted = entry['id'], str(entry['file_name'])
                if number in pictures:
                    self.faults.add(place, f'the id {number!r} is used by another image: give each one of its own')
                pictures[number] = None
                path = self.tree.locate(wanted, self.name, self.part)
            except (KeyError, TypeError):
                self.faults.add(place, 'an image needs an id and a file_name')
                continue
            except ValueError as error:
                self.faults.add(place, str(error))
                continue
            if path is None:
                self.faults.add(place, f'there is no picture {wanted!r} below {str(self.tree.root)!r}')
            elif path in used:
                self.faults.add(place, f'{wanted!r} is listed before, with the id {used[path]!r}: list it once')
            elif (size := self.tree.size(path)) is not None:
                self.tree.check_size(path, (entry.get('width'), entry.get('height')), place)
                pictures[number], used[path] = Picture(path, size, self.part or folder_part(path), id=number), number
        self.found.pictures += [picture for picture in pictures.values() if picture is not None]
        return pictures


def _object(entry: Mapping[str, Any], names: Mapping[Any, str], place: Place, size: tuple[int, int]) -> Object:
    label, mask = names[entry['category_id']], _mask(entry.get('segmentation'), size)
    box = entry.get('bbox')
    if box is None:
        box = box_of(mask)
    if not isinstance(box, (list, tuple)) or len(box) != 4:
        raise ValueError(f'its bbox must be [x, y, width, height]; got {box!r}')
    return Object(label, tuple(numbers(box)), mask, bool(entry.get('iscrowd') or entry.get('ignore')), place)


def _mask(mask: Any, size: tuple[int, int]) -> Any:
    """Polygons of three points and more, runs, or None."""
    if not mask:
        return None
    if not is_mask(mask):
        raise ValueError('its segmentation is neither polygons nor runs within bounds')
    if isinstance(mask, Mapping):
        if 'counts' not in mask or tuple(mask['size']) != size[::-1]:
            raise ValueError(f'the runs of its segmentation are not of a picture of {size[0]} x {size[1]} pixels')
        return mask
    if any(len(polygon) % 2 for polygon in mask):
        raise ValueError('a polygon of its segmentation has an x without a y')
    return [polygon for polygon in mask if len(polygon) >= 6] or None


def box_of(mask: Any) -> list[float]:
    """Around polygons or runs."""
    if isinstance(mask, Mapping):
        from pycocotools import mask as coder

        runs = coder.frPyObjects(mask, *mask['size']) if isinstance(mask['counts'], list) else mask
        return coder.toBbox(runs).tolist()
    if not mask:
        raise ValueError('it has neither bbox nor segmentation')
    xs, ys = ([value for polygon in mask for value in polygon[axis::2]] for axis in (0, 1))
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
